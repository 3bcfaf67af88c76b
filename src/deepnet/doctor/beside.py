"""Numbers shown beside the signs: what a model is at its first weights, and what theory says of its updates."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from deepnet.doctor.diagnosis import Evidence, finite
from deepnet.doctor.moments import measure_moments
from deepnet.probes.recorder import Recorder

Rows = Mapping[str, Sequence[float | None]]
_LARGEST = {
    "branch_ratio": "what a branch adds over what it is added to",
    "norm_input": "root mean square of what enters a norm",
}
_LAST = {
    "token_mean_energy": "token mean of the last layer's output over what varies between tokens",
    "logit_scale": "standard deviation of the logits",
}


def first_weights(
    model: nn.Module, recorder: Recorder, loss: Callable[[nn.Module], Tensor], *, whose: str
) -> list[Evidence]:
    """Return what a model shows at its first weights; gradients are left on it. `whose` says which model it is.

    Raises AdaptError for a model whose residual sites are not known.
    """
    moments = measure_moments(model, loss)
    gradients, readings = recorder.gradients(), recorder.measure()
    stacks = [name for name in ("encoder", "decoder") if name in readings["model_update"]]
    at = f"at the first weights of {whose}"
    found = []
    for stack in stacks:
        forward, backward = moments.growth(stack)
        norms = layer_norms(gradients, stack)
        found += [
            _row(f"{at}, {stack}: stream of the last layer over the first's", forward),
            _row(f"{at}, {stack}: gradient by the first layer's stream over the last's", backward),
            _row(f"{at}, {stack}: gradient norm of the first layer over the last's", _ends(norms)),
        ]
    for name, what in _LARGEST.items():
        found.append(_row(f"{at}: {what}, the largest", _largest(readings.get(name, {}))))
    for name, what in _LAST.items():
        found.append(_row(f"{at}: {what}", _last(readings.get(name, {}), stacks[-1])))
    return [row for row in found if row.value is not None]


def against_theory(readings: Sequence[Mapping[str, Any]]) -> list[Evidence]:
    """Return how far the first measured updates moved the last layer's output, and how far DeepNet's theorem says.

    Nothing where the theorem does not treat the model.
    """
    if not readings or "predicted_update" not in readings[0]:
        return []
    first = readings[0]
    (predicted,) = first["predicted_update"]["output"]
    stacks = [name for name in ("encoder", "decoder") if name in first["model_update"]]
    moved = first["model_update"][stacks[-1]][-1]
    what = f"movement of the last layer's output by the first {first['step']} updates, and by Theorems 4.2, 4.3"
    return [Evidence(what=what, value=moved, limit=predicted)]


def layer_norms(gradients: Rows, stack: str) -> list[float]:
    """Return the gradient norm of each layer of a stack, from those of its weights."""
    rows = [row for key, row in gradients.items() if key.startswith(f"{stack}.") and len(row) > 1]
    return [math.hypot(*(value or 0.0 for value in layer)) for layer in zip(*rows, strict=True)]


def _row(what: str, value: float | None) -> Evidence:
    return Evidence(what=what, value=finite(value))


def _ends(norms: Sequence[float]) -> float | None:
    return norms[0] / norms[-1] if norms and norms[-1] else None


def _largest(rows: Rows) -> float | None:
    return max((value for row in rows.values() for value in row if value is not None), default=None)


def _last(rows: Rows, stack: str) -> float | None:
    row = rows.get(stack) or rows.get("output") or [None]
    return row[-1]
