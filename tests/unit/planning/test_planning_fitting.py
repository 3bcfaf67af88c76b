"""What a few layers say of many, where a scheme has something in every second layer alone."""

from pathlib import Path

import pytest

from deepnet.pipeline.fitting import _Case, _extrapolated
from deepnet.pipeline.recipe import load_recipe
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.models import STACKS, Transformer

GRID = Path(__file__).parents[3] / "benchmarks" / "scheme_grid.toml"


def parameters(case):
    model = case.recipe.model.model_copy(update={"vocab_size": 300})
    return count_parameters(Transformer(model, load_scheme(case.recipe.scheme["name"])))["total"]


@pytest.mark.parametrize("scheme", ["deepnorm", "value_embeddings"])
@pytest.mark.parametrize("layers", [(8, 8), (1, 6), (4, 2), (2, 10)])
def test_two_and_four_layers_a_stack_tell_of_all(scheme, layers):
    words = [f"scheme.name={scheme}"]
    words += [f"model.{name}_layers={n}" for name, n in zip(STACKS, layers, strict=True)]
    case = _Case("", load_recipe(GRID, words), ())
    most = parameters(case)
    assert _extrapolated(case, parameters) == most
