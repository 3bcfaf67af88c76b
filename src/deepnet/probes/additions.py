"""The two terms of every residual addition, whoever wrote the model: what is added, and what it is added to.

In our own sites and in adopted ones these are the terms after their scales. In a stock layer the skip is what the
branch started from, and what was added is the difference that the stream shows, rounding included. Where a stream has
no such addition (hyper-connections) it is how far the site moves what the stream shows, and what it showed.
"""

from abc import abstractmethod
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor

from deepnet.anatomy.base import FoundSite
from deepnet.probes.listening import (
    ForwardProbe,
    on_input,
    on_method,
    on_output,
    peeked,
    wide,
)
from deepnet.probes.place import Place, site_places
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import scaled


class AdditionProbe(ForwardProbe):
    """A probe of what each branch adds to the stream."""

    @abstractmethod
    def _see(self, place: Place, skip: Tensor, added: Tensor) -> None:
        """Take the two terms of a site's addition, both [B, T, D]."""

    def _listen(self, hooks: ExitStack) -> None:
        self._skips: dict[Place, Tensor] = {}
        hooks.callback(self._skips.clear)
        sites = list(site_places(self.anatomy))
        for (place, found), (_, following) in zip(sites, [*sites[1:], (None, None)], strict=True):
            if found.residual is None:
                self._watch_stock(place, found, following, hooks)
            else:
                self._watch_own(place, found, found.residual, hooks)

    def _watch_own(
        self, place: Place, found: FoundSite, residual: Residual, hooks: ExitStack
    ) -> None:
        """Take the terms of the addition, or the stream before and after where it makes none."""
        on_method(residual, "add", partial(self._add, place, residual), hooks)
        on_method(residual, "drop_and_add", partial(self._sum, place, residual), hooks)
        if found.part.peek is not None:
            on_input(found.part.owner, partial(self._start, place, found), hooks)
            on_output(found.part.owner, partial(self._end, place, found), hooks)

    def _watch_stock(
        self, place: Place, found: FoundSite, following: FoundSite | None, hooks: ExitStack
    ) -> None:
        """Take the stream where the branch starts and after the addition."""
        owner, (pre, post) = found.part.owner, found.norms()
        start, end = partial(self._start, place, found), partial(self._end, place, found)
        if post is not None:
            on_input(found.part.weights[0].owner, start, hooks)
            on_input(post, end, hooks)
            return
        assert pre is not None
        on_input(pre, start, hooks)
        if following is not None and following.part.owner is owner:
            next_norm = following.norms()[0]
            assert next_norm is not None
            on_input(next_norm, end, hooks)
        else:
            on_output(owner, end, hooks)

    def _add(
        self, place: Place, residual: Residual, _: Tensor, skip: Tensor, added: Tensor
    ) -> None:
        self._skips.pop(place, None)
        skip, added = scaled(skip, residual.skip), scaled(added, residual.branch_scale)
        self._see(place, skip, added)

    def _sum(
        self, place: Place, residual: Residual, total: Tensor, skip: Tensor, _: Tensor
    ) -> None:
        """Take the branch's term, of which some is dropped, as what the sum has beside the skip."""
        self._skips.pop(place, None)
        skip = wide(scaled(skip, residual.skip))
        self._see(place, skip, wide(total) - skip)

    def _start(self, place: Place, found: FoundSite, state: Any) -> None:
        self._skips[place] = peeked(found, state)

    def _end(self, place: Place, found: FoundSite, state: Any) -> None:
        skip = self._skips.pop(place, None)
        if skip is not None:
            after = peeked(found, state)
            skip = wide(skip).reshape(after.shape)
            self._see(place, skip, wide(after) - skip)
