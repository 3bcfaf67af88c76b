"""What the guard sees of each update before the weights take it: gradient norms and the inputs of the norms."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError
from deepnet.probes.listening import on_input, sum_of_squares
from deepnet.probes.norm_input import NormInput
from deepnet.probes.place import Place, parameter_places, site_places


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


class NormInputs:
    """Adds up the squares of what enters each norm in training; where a model's sites are not known, of none."""

    def __init__(self, model: nn.Module) -> None:
        norms = _norms_of(model)
        paths = {module: path for path, module in model.named_modules()}
        self.places = list(norms)
        self.paths = {place: paths[norm] for place, norm in norms.items()}
        """The module of each place, by its path from the model."""
        self.sources = norm_sources(model) if norms else {}
        self._norms = list(norms.values())
        self._squares: list[list[Tensor]] = [[] for _ in norms]
        self._counts = [0 for _ in norms]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Look at every forward pass in training mode meanwhile."""
        with ExitStack() as hooks:
            for index, norm in enumerate(self._norms):
                on_input(norm, partial(self._see, index), hooks)
            yield

    def take(self, device: torch.device) -> Tensor:
        """Return the sums of squares, then the numbers of elements since the last call: float64 [2 S]."""
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        sums = [torch.stack(seen).sum() if seen else nothing for seen in self._squares]
        counts = torch.tensor(self._counts, dtype=torch.float64, device=device)
        self._squares = [[] for _ in sums]
        self._counts = [0 for _ in sums]
        return torch.cat([torch.stack(sums), counts]) if sums else counts

    def _see(self, index: int, x: Tensor) -> None:
        if not self._norms[index].training:
            return
        self._squares[index].append(sum_of_squares(x))
        self._counts[index] += x.numel()


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
