"""How large the stream is after each layer, and how large the gradient that comes back to it there.

Root mean squares over all elements. Where both stay near what they were, depth changes neither the signal nor the
gradient; DeepScaleLM plans a model for that (Kedia et al., arXiv 2403.09635, which derives the moments; these are
measured).
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from deepnet.anatomy.base import FoundSite
from deepnet.anatomy.locate import locate
from deepnet.probes.listening import first_tensor, peeked, wide
from deepnet.probes.place import Place, layer_places


@dataclass(frozen=True)
class Moments:
    """Root mean squares by layer; of a layer that no gradient came back to there is none."""

    forward: dict[Place, float] = field(default_factory=dict)
    """Of what the layer returns."""
    backward: dict[Place, float] = field(default_factory=dict)
    """Of the loss's gradient by it."""

    def growth(self, stack: str) -> tuple[float | None, float | None]:
        """Return last over first layer of a stack, forward, and first over last, backward."""
        return _growth(self.forward, stack, back=False), _growth(self.backward, stack, back=True)


def measure_moments(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Moments:
    """Run both passes of `loss` and return what was seen; gradients are left on the model.

    Raises AdaptError for a model whose residual sites are not known.
    """
    found = Moments()
    with ExitStack() as hooks:
        for place, site in layer_places(locate(model)):
            see = partial(_see, found, place, site)
            hooks.callback(site.part.owner.register_forward_hook(see).remove)
        loss(model).backward()  # type: ignore[no-untyped-call]
    return found


def _see(found: Moments, place: Place, site: FoundSite, _: nn.Module, args: Any, out: Any) -> None:
    found.forward[place] = _size(peeked(site, out))
    state = first_tensor(out)
    if state.requires_grad:
        keep = partial(_keep, found, place)
        state.register_hook(keep)  # type: ignore[no-untyped-call]


def _keep(found: Moments, place: Place, gradient: Tensor) -> None:
    found.backward[place] = _size(gradient)


def _size(x: Tensor) -> float:
    return float(wide(x.detach()).square().mean().sqrt())


def _growth(sizes: dict[Place, float], stack: str, *, back: bool) -> float | None:
    own = [size for _, size in sorted((p.layer, s) for p, s in sizes.items() if p.stack == stack)]
    if len(own) < 2:
        return None
    start, end = (own[-1], own[0]) if back else (own[0], own[-1])
    return end / start if start else None
