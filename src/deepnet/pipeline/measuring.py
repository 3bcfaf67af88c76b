"""What the probes need to measure a model of ours: a fixed batch of valid sentences, what theory says of its update."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from deepnet.data.loader import Batch
from deepnet.data.prepare import PreparedData
from deepnet.errors import ConfigError, DataError
from deepnet.pipeline.preparing import HELD_OUT_SEED, make_objective
from deepnet.pipeline.recipe import Recipe
from deepnet.probes.recorder import Recorder
from deepnet.theory.live_model import (
    BranchMatrices,
    branch_matrices,
    post_norm_sites,
    predicted_update,
)
from deepnet.training.engine.precision import Precision
from deepnet.transformer.models import Transformer


class UpdatePrediction:
    """DeepNet's Theorem 4.2 or 4.3 for the model update since the first weights, of which it keeps v, out, fc1, fc2.

    They are kept in main memory, whatever the model's device. `first` gives back what `tensors` returned. Raises
    ConfigError for a model that is not made of post-norm sites.
    """

    def __init__(self, model: Transformer, *, first: Mapping[str, Tensor] | None = None) -> None:
        self._model = model
        self._before: dict[str, list[BranchMatrices]] = {}
        for stack in model.stacks():
            names = [f"matrices.{stack.name}.{n + 1}" for n in range(len(post_norm_sites(stack)))]
            self._before[stack.name] = [
                BranchMatrices(*(_copied(m) for m in branch_matrices(site)))
                if first is None
                else BranchMatrices(first[f"{name}.v"].cpu(), first[f"{name}.w"].cpu())
                for name, site in zip(names, post_norm_sites(stack), strict=True)
            ]

    def tensors(self) -> dict[str, Tensor]:
        """Return the first matrices by stack and number of the site."""
        return {
            f"matrices.{stack}.{number}.{name}": matrix
            for stack, sites in self._before.items()
            for number, site in enumerate(sites, start=1)
            for name, matrix in site._asdict().items()
        }

    def measure(self) -> float:
        """Return the predicted root mean square movement of the last stack's output."""
        return predicted_update(self._model, self._before)


def probe_batch(recipe: Recipe, data: PreparedData, *, sentences: int) -> Batch:
    """Return the first sentences of the valid part as the model sees them; raises DataError where there are none."""
    dataset = data.dataset("valid")
    if not len(dataset):
        raise DataError("the probes look at sentences of the valid part, but it is empty")
    objective = make_objective(recipe, data.tokenizers, seed=HELD_OUT_SEED)
    return objective.batch(dataset, np.arange(min(sentences, len(dataset))), epoch=0)


def make_recorder(
    model: Transformer,
    batch: Batch,
    *,
    precision: Precision,
    first: Mapping[str, Tensor] | None = None,
) -> Recorder:
    """Return the probes of a model on a batch that is on its device; `first` as in `Recorder`."""
    return Recorder(
        model,
        lambda model: model(batch.source, batch.source_keep, batch.target_in),
        autocast=precision.autocast,
        prediction=_prediction(model, first),
        first=first,
    )


def _prediction(model: Transformer, first: Mapping[str, Tensor] | None) -> UpdatePrediction | None:
    """Return what theory says of a model, None where it says nothing."""
    try:
        return UpdatePrediction(model, first=first)
    except ConfigError:
        return None


def _copied(matrix: Tensor) -> Tensor:
    return matrix.detach().to("cpu", copy=True)
