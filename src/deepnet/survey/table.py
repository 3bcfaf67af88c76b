"""The catalogue of residual schemes, with what each adds to a model as read off one that was built."""

from typing import Any

import torch

from deepnet.schemes import post_ln
from deepnet.schemes.base import Architecture, ResidualScheme
from deepnet.schemes.catalogue import load_scheme, scheme_row, scheme_table
from deepnet.survey.norm_places import describe_norms
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.models import Transformer, TransformerConfig

NORMS = (
    "Norms: pre is before a branch, out on its output, post after the addition; q, k, v, heads and activation are "
    "inside a branch, stream is between layers, embedding and final are at the ends of a stack."
)
"""What the words in the column of norms mean."""
PARAMETERS = (
    "Parameters beside post_ln's: in a model of 4 layers per stack, d_model 512, ffn_dim 2048 and 32,000 ids, of the "
    "first of the scheme's architectures."
)
"""Where the extra parameters are counted."""
_LAYERS = 4


def scheme_catalogue() -> list[dict[str, Any]]:
    """Return `scheme_table` with the norms and extra parameters that a model of each scheme turns out to have."""
    rows = scheme_table()
    first = {row["architectures"][0] for row in rows}
    plain = {one: _num_parameters(_built(post_ln.Scheme(), one)) for one in first}
    return [_measured(row, plain[row["architectures"][0]]) for row in rows]


def catalogue_row(name: str) -> dict[str, Any]:
    """Return one scheme's row of `scheme_catalogue`; it may be one of your own, "module:Class"."""
    row = scheme_row(name)
    return _measured(row, _num_parameters(_built(post_ln.Scheme(), row["architectures"][0])))


def stack_layers(architecture: Architecture, layers: int) -> tuple[int, int]:
    """Return encoder_layers and decoder_layers of a model with that many layers in every stack it has."""
    n = 0 if architecture == "decoder_only" else layers
    return n, 0 if architecture == "encoder_only" else layers


def _measured(row: dict[str, Any], plain: int) -> dict[str, Any]:
    model = _built(load_scheme(row["name"]), row["architectures"][0])
    norms = describe_norms(model.stacks()[-1])
    return {**row, "norms": norms, "extra_parameters": _num_parameters(model) - plain}


def _built(scheme: ResidualScheme, architecture: Architecture) -> Transformer:
    """Return a model that has shapes but no numbers."""
    n, m = stack_layers(architecture, _LAYERS)
    config = TransformerConfig(
        architecture=architecture, encoder_layers=n, decoder_layers=m, vocab_size=32000
    )
    with torch.device("meta"):
        return Transformer(config, scheme)


def _num_parameters(model: Transformer) -> int:
    return count_parameters(model)["total"]
