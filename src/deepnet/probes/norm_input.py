"""Magnitude of the input to each norm: where it grows layer by layer, Post-LN's gradients vanish.

Root mean square over all elements of what the norm of each site reads: alpha * x + f(x) after the addition (post-norm),
x before the branch (pre-norm). A site with several norms has the one after the addition under its own place and the
others under "pre" and "out"; a stack's first and last norm stand under "embedding" and "final".

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.anatomy.base import Anatomy, FoundSite
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError
from deepnet.probes.listening import PooledProbe, is_recomputing, on_input, sum_of_squares
from deepnet.probes.place import Place, final_norm, site_places

_TALLY = "norm_input_tally"
"""The attribute under which a norm that is listened to in training holds its sums."""


class NormInput(PooledProbe):
    """Root mean square of the input to each norm."""

    def _listen(self, hooks: ExitStack) -> None:
        for place, norm in _norm_places(self.anatomy):
            on_input(norm, partial(self._pool, place), hooks)

    def _pool(self, place: Place, x: Tensor) -> None:
        self._count(place, sum_of_squares(x), x.numel())


class Tally(NamedTuple):
    """What has entered a norm since it was last asked."""

    squares: Tensor
    """Sum of the squares of all elements, float64 [1]."""
    num_elements: Tensor
    """How many there were, float64 [1]."""


class NormInputs:
    """Adds up the same squares at every update of a training run; where a model's sites are not known, of no norm.

    Sums are kept as tensors on the norms, and one function listens to them all: a compiled block that is listened to
    stays one graph, which serves every layer that is like it.
    """

    def __init__(self, model: nn.Module) -> None:
        norms: dict[Place, nn.Module] = {}
        self.sources: dict[Place, Place] = {}
        """The site that makes what enters the norm of another."""
        self.looped: set[str] = set()
        """The stacks whose layers run several times."""
        with suppress(AdaptError):
            anatomy = locate(model)
            norms, self.sources = dict(_norm_places(anatomy)), _sources(anatomy)
            self.looped = {stack.name for stack in anatomy.stacks if stack.loops > 1}
        paths = {module: path for path, module in model.named_modules()}
        self.places = list(norms)
        self.paths = {place: paths[norm] for place, norm in norms.items()}
        """The module of each place, by its path from the model."""
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
        if not self._tallies:
            return torch.zeros(0, dtype=torch.float64, device=device)
        tallies = [self._tallies[norm] for norm in self._norms]
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
    tally.num_elements.add_(x.numel())


def _norm_places(anatomy: Anatomy) -> Iterator[tuple[Place, nn.Module]]:
    """Yield every norm with the place of its reading."""
    for place, found in site_places(anatomy):
        norms = _norms_of(found)
        own = next((name for name in ("post", "pre", "out") if name in norms), None)
        for name, norm in norms.items():
            yield place if name == own else place._replace(role=name), norm
    for stack in anatomy.stacks:
        ends = {"embedding": stack.entry_norm, "final": final_norm(anatomy, stack)}
        for name, end in ends.items():
            if end is not None:
                yield Place(stack.name, 0, name), end


def _norms_of(found: FoundSite) -> dict[str, nn.Module]:
    pre, post = found.norms()
    out = None if found.residual is None else found.residual.out
    norms = {"pre": pre, "out": out, "post": post}
    return {name: norm for name, norm in norms.items() if norm is not None}


def _sources(anatomy: Anatomy) -> dict[Place, Place]:
    """Return the site that makes what enters the norm of another.

    A norm before a branch reads what the site before it wrote, or the embedding. Any other norm reads its own site.
    What enters the first site of looped layers may come from any of them, at an earlier pass: its source is the stack.
    """
    looped = {stack.name for stack in anatomy.stacks if stack.loops > 1}
    sources: dict[Place, Place] = {}
    before: dict[str, Place] = {}
    for place, found in site_places(anatomy):
        pre, post = found.norms()
        if pre is not None:
            norm = place._replace(role="pre") if post is not None else place
            sources[norm] = before.get(place.stack, Place(place.stack, 0, "embedding"))
        if place.stack in looped and place.stack not in before:
            own = (place._replace(role=name) for name in ("", *_norms_of(found)))
            sources |= dict.fromkeys(own, Place(place.stack, 0))
        before[place.stack] = place
    return sources | {Place(stack, 0, "final"): place for stack, place in before.items()}
