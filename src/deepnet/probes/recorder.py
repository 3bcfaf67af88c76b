"""All probes of a training run: what the loop asks for at every K-th update, on the writing rank alone.

The model sees the same probe batch each time, in evaluation mode without gradients: once before the update and once
after it, all probes of the forward pass open together. Nothing that training depends on changes.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deepnet.anatomy.locate import locate
from deepnet.errors import CheckpointError
from deepnet.probes.attention_entropy import AttentionEntropy
from deepnet.probes.branch_ratio import BranchRatio
from deepnet.probes.gradient_norm import GradientNorm
from deepnet.probes.listening import ForwardProbe
from deepnet.probes.logit_scale import LogitScale, logits_of
from deepnet.probes.model_update import LayerOutputs, distance, evaluating
from deepnet.probes.norm_input import NormInput
from deepnet.probes.place import OUTPUT, Place, by_layer
from deepnet.probes.similarity import Similarity
from deepnet.probes.sparsity import Sparsity
from deepnet.probes.token_mean_energy import TokenMeanEnergy
from deepnet.probes.update_ratio import UpdateRatio

Record = dict[str, dict[str, list[float | None]]]
"""Readings by probe and place, those of layers as a list over the layers; None where there is none that is finite."""
_UNRECORDED = ("norm", "bias")
"""Roles whose gradients the probe reads, but that a record leaves out: they would double its size."""


class Prediction(Protocol):
    """What theory says of the model update, where it says something."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what it keeps of the first weights."""

    def measure(self) -> float:
        """Return the predicted root mean square movement of the last stack's output since then."""


class Recorder:
    """Measures one model on one probe batch, before and after an update."""

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[nn.Module], Any],
        *,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        prediction: Prediction | None = None,
        first: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Look at theta_0, or take `first`, what an earlier recorder of the run saw of it.

        `forward` runs a model on the probe batch and returns the logits. Raises AdaptError for a model whose residual
        sites are not known, CheckpointError where `first` is of another model or probe batch.
        """
        self._model, self._forward, self._autocast = model, forward, autocast
        self._prediction = prediction
        self._layers: dict[str, int] = {s.name: s.num_layers for s in locate(model).stacks}
        self._outputs = LayerOutputs(model)
        self._probes: dict[str, ForwardProbe] = {
            "norm_input": NormInput(model),
            "branch_ratio": BranchRatio(model),
            "similarity": Similarity(model),
            "sparsity": Sparsity(model),
            "attention_entropy": AttentionEntropy(model),
            "token_mean_energy": TokenMeanEnergy(model),
            "logit_scale": LogitScale(model),
        }
        self._gradient_norm, self._update_ratio = GradientNorm(model), UpdateRatio(model)
        self._update = ExitStack()
        self._gradients: dict[str, list[float | None]] = {}
        self._before = self._look()
        self._first = self._before if first is None else _checked(first, self._before)

    def first_outputs(self) -> dict[str, Tensor]:
        """Return what a resumed run needs to compare with the same theta_0; it never changes, so once is enough."""
        outputs = {str(place): tensor for place, tensor in self._first.items()}
        return outputs | (self._prediction.tensors() if self._prediction else {})

    def before_update(self) -> None:
        """Read the gradients, not scaled and not clipped yet, and what the step will change."""
        self._update.close()  # of an update that was skipped
        self._gradients = self.gradients()
        self._before = self._look()
        self._update.enter_context(self._update_ratio)

    def after_update(self, step: int) -> dict[str, Any]:
        """Return the record of the update that was just done, the `step`-th."""
        self._update.close()
        now, record = self._look_closely()
        return {
            "step": step,
            "gradient_norm": self._gradients,
            **record,
            "update_ratio": self._by_layer(self._update_ratio.readings()),
            "step_update": self._by_layer(_movement(now, self._before)),
        }

    def gradients(self) -> dict[str, list[float | None]]:
        """Return the norms of the gradients that there are now."""
        readings = self._gradient_norm.readings()
        return self._by_layer({p: x for p, x in readings.items() if p.role not in _UNRECORDED})

    def measure(self) -> Record:
        """Return what the model shows as it is: every probe of the forward pass, and how far it is from theta_0."""
        return self._look_closely()[1]

    def _look_closely(self) -> tuple[dict[Place, Tensor], Record]:
        with ExitStack() as opened:
            for probe in self._probes.values():
                opened.enter_context(probe)
            now = self._look()
        record = {name: self._by_layer(probe.readings()) for name, probe in self._probes.items()}
        record["model_update"] = self._by_layer(_movement(now, self._first))
        if self._prediction:
            record["predicted_update"] = self._by_layer({OUTPUT: self._predicted()})
        return now, record

    def _look(self) -> dict[Place, Tensor]:
        """Return the output of each layer, and the logits."""
        with evaluating(self._model), torch.no_grad(), self._autocast(), self._outputs as kept:
            logits = logits_of(self._forward(self._model))
        return {**kept.outputs, OUTPUT: logits.detach().clone()}

    def _predicted(self) -> float:
        """Return the predicted movement of the last layer, relative to theta_0's output of it."""
        assert self._prediction is not None
        last = list(self._layers.items())[-1]
        start = self._first[Place(*last)].double().square().mean().sqrt()
        return self._prediction.measure() / float(start)

    def _by_layer(self, readings: Mapping[Place, float]) -> dict[str, list[float | None]]:
        return by_layer(readings, num_layers=self._layers)


def _movement(now: Mapping[Place, Tensor], before: Mapping[Place, Tensor]) -> dict[Place, float]:
    """Return how far each output is from what it was before, relative to that."""
    return {place: distance([now[place]], [was]).relative for place, was in before.items()}


def _checked(first: Mapping[str, Tensor], now: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """Return earlier outputs by place, beside those of now; raises CheckpointError where they do not fit together."""
    shapes = {str(place): tuple(tensor.shape) for place, tensor in now.items()}
    wrong = [key for key, shape in shapes.items() if key not in first or first[key].shape != shape]
    if wrong:
        raise CheckpointError(
            f"the first outputs have no '{wrong[0]}' of shape {shapes[wrong[0]]}: they were measured on another "
            "model or other probe sentences; go on with the [probes], [model] and valid text of before"
        )
    return {place: first[str(place)].to(tensor.device) for place, tensor in now.items()}
