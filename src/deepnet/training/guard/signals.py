"""What the guard sees of each update before the weights take it: gradient norms and the inputs of the norms."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError
from deepnet.probes.listening import is_recomputing, sum_of_squares
from deepnet.probes.norm_input import NormInput
from deepnet.probes.place import Place, parameter_places, site_places

_TALLY = "guard_tally"
"""The attribute under which a norm that is listened to holds its sums."""


class Watched(NamedTuple):
    """A parameter: where it belongs, whether it is trained, and the path of the module that owns it."""

    place: Place
    trains: bool
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """One update, not applied yet; the same on every rank."""

    step: int
    """The number that the update would have, from 1."""
    lr: float
    loss: float
    """Smoothed loss in nats per target token."""
    gradient_norm: float
    """L2 norm of the whole gradient before clipping."""
    gradients: Tensor
    """Float32 [P] on the CPU: the L2 norm of each parameter's gradient, 0 where it has none."""
    norm_inputs: Tensor
    """Float32 [S] on the CPU: root mean square of what enters each site's norm."""

    @property
    def is_finite(self) -> bool:
        """Return whether the loss and the gradient are."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Tally(NamedTuple):
    """What has entered a norm since it was last asked."""

    squares: Tensor
    """Sum of the squares of all elements, float64 [1]."""
    number: Tensor
    """How many there were, float64 [1]."""


class NormInputs:
    """Adds up the squares of what enters each norm in training; where a model's sites are not known, of none.

    Sums are kept as tensors on the norms, and one function listens to them all: a compiled block that is listened to
    stays one graph, which serves every layer that is like it.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = _norms_of(model)
        paths = {module: path for path, module in model.named_modules()}
        self.places = list(norms)
        self.paths = {place: paths[norm] for place, norm in norms.items()}
        """The module of each place, by its path from the model."""
        self.sources = norm_sources(model) if norms else {}
        self._norms = list(norms.values())
        self._tallies: dict[nn.Module, Tally] = {}

    @contextmanager
    def open(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """Look at every forward pass in training mode meanwhile, of a model on that device."""
        with ExitStack() as stack:
            for norm in dict.fromkeys(self._norms):
                # not of shape []: torch.compile takes such a float64 for a number, and does not write to it
                empty = [torch.zeros(1, dtype=torch.float64, device=device) for _ in Tally._fields]
                self._tallies[norm] = Tally(*empty)
                setattr(norm, _TALLY, self._tallies[norm])
                stack.callback(delattr, norm, _TALLY)
                stack.callback(norm.register_forward_pre_hook(_count, with_kwargs=True).remove)
            yield

    def take(self, device: torch.device) -> Tensor:
        """Return the sums of squares, then the numbers of elements since the last call: float64 [2 S]."""
        tallies = [self._tallies[norm] for norm in self._norms]
        if not tallies:
            return torch.zeros(0, dtype=torch.float64, device=device)
        sums = torch.cat([each for field in zip(*tallies, strict=True) for each in field])
        torch._foreach_zero_([each for tally in self._tallies.values() for each in tally])
        return sums


def _count(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add what a norm is given to its tally; what recompute gives it again changes no mean in a compiled block."""
    if not norm.training or (not torch.compiler.is_compiling() and is_recomputing()):
        return
    x: Tensor = next(iter((*args, *kwargs.values()))).detach()
    tally: Tally = getattr(norm, _TALLY)
    tally.squares.add_(sum_of_squares(x))
    tally.number.add_(x.numel())


def watched_parameters(model: nn.Module) -> list[Watched]:
    """Return what is known of each parameter, in the order of `model.parameters()`."""
    places = zip(parameter_places(model), model.named_parameters(), strict=True)
    return [
        Watched(place, parameter.requires_grad, name.rpartition(".")[0])
        for place, (name, parameter) in places
    ]


def norm_sources(model: nn.Module) -> dict[Place, Place]:
    """Return the site that makes what enters the norm of another; raises AdaptError for a model that is not known.

    A norm before a branch reads what the site before it wrote, or the embedding. Any other norm reads its own site.
    """
    sources: dict[Place, Place] = {}
    before: dict[str, Place] = {}
    for place, found in site_places(locate(model)):
        pre, post = found.norms()
        if pre is not None:
            norm = place._replace(role="pre") if post is not None else place
            sources[norm] = before.get(place.stack, Place(place.stack, 0, "embedding"))
        before[place.stack] = place
    return sources | {Place(stack, 0, "final"): place for stack, place in before.items()}


def _norms_of(model: nn.Module) -> dict[Place, nn.Module]:
    try:
        return dict(NormInput(model).norms())
    except AdaptError:
        return {}
