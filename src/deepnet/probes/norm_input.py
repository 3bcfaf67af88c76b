"""Magnitude of the input to each norm: where it grows layer by layer, Post-LN's gradients vanish.

Root mean square over all elements of what the norm of each site reads: alpha * x + f(x) after the addition (post-norm),
x before the branch (pre-norm). A site with several norms has the one after the addition under its own place and the
others under "pre" and "out"; a stack's first and last norm stand under "embedding" and "final".

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from deepnet.anatomy.base import FoundSite
from deepnet.probes.listening import PooledProbe, on_input, sum_of_squares
from deepnet.probes.place import Place, final_norm, site_places


class NormInput(PooledProbe):
    """Root mean square of the input to each norm."""

    def _listen(self, hooks: ExitStack) -> None:
        for place, norm in self.norms():
            on_input(norm, partial(self._pool, place), hooks)

    def _pool(self, place: Place, x: Tensor) -> None:
        self._count(place, sum_of_squares(x), x.numel())

    def norms(self) -> Iterator[tuple[Place, nn.Module]]:
        """Yield every norm with the place of its reading."""
        for place, found in site_places(self.anatomy):
            norms = _norms_of(found)
            own = next((name for name in ("post", "pre", "out") if name in norms), None)
            for name, norm in norms.items():
                yield place if name == own else place._replace(role=name), norm
        for stack in self.anatomy.stacks:
            ends = {"embedding": stack.entry_norm, "final": final_norm(self.anatomy, stack)}
            for name, end in ends.items():
                if end is not None:
                    yield Place(stack.name, 0, name), end


def _norms_of(found: FoundSite) -> dict[str, nn.Module]:
    pre, post = found.norms()
    out = None if found.residual is None else found.residual.out
    norms = {"pre": pre, "out": out, "post": post}
    return {name: norm for name, norm in norms.items() if norm is not None}
