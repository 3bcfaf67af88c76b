"""How alike the tokens of a sequence are: rho = |M| / |V|, the part all of them share over the part that varies.

    u [B, T, D] = M + V,   M the mean over the tokens of a sequence, at each of them;   rho = mean_b |M| / mean_b |V|

Read of the output of each layer, and of what each branch adds; there, under "varying", also |V(y)| / |V(x)|, y what is
added and x what it is added to. Positions that are padding are left out where the model's call says which they are.
Tokens drawn independently give (T - 1)^(-1/2); tokens that are all the same give infinity, which a record leaves out.

Source: MV-Split, arXiv 2605.06169, and the authors' code (gradient_diagnosis.py); leaving padding out is ours.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.anatomy.base import FoundSite
from deepnet.probes.additions import AdditionProbe
from deepnet.probes.listening import on_arguments, on_output, peeked, wide
from deepnet.probes.padding import real_queries
from deepnet.probes.place import Place, layer_places


class Energies(NamedTuple):
    """Lengths |M| and |V|, summed over the sequences of a batch."""

    mean: Tensor
    varying: Tensor


class TokenMeanEnergy(AdditionProbe):
    """The mean token of a sequence over what varies around it, in each layer's output and in what each branch adds."""

    def _listen(self, hooks: ExitStack) -> None:
        self._real: dict[str, Tensor] = {}
        self._time_first = {s.name for s in self.anatomy.stacks if _is_time_first(s.module)}
        on_arguments(self.anatomy.model, self._note_padding, hooks)
        on_output(self.anatomy.model, self._forget, hooks)
        for place, found in layer_places(self.anatomy):
            on_output(found.part.owner, partial(self._look, place, found), hooks)
        super()._listen(hooks)

    def _note_padding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._real = real_queries(self.anatomy, args, kwargs)

    def _forget(self, *_: Any) -> None:
        self._real = {}

    def _look(self, place: Place, found: FoundSite, output: Any) -> None:
        self._count(place, *self._energies(place, peeked(found, output)))

    def _see(self, place: Place, skip: Tensor, added: Tensor) -> None:
        of_added = self._energies(place, added)
        self._count(place, *of_added)
        varying = self._energies(place, skip).varying
        self._count(place._replace(role="varying"), of_added.varying, varying)

    def _energies(self, place: Place, u: Tensor) -> Energies:
        if u.dim() == 2:  # torch.nn's layers take a single sequence [T, D], too
            u = u[None]
        elif place.stack in self._time_first:
            u = u.transpose(0, 1)
        real = self._real.get(place.stack)
        return token_mean_energies(
            u, real if real is not None and real.shape == u.shape[:2] else None
        )

    def _result(self, total: float, weight: float) -> float:
        """Return the quotient of the two sums; by nothing it is infinite."""
        if weight:
            return total / weight
        return float("inf") if total else float("nan")


def token_mean_energies(u: Tensor, real: Tensor | None = None) -> Energies:
    """Return |M| and |V| of `u` [B, T, D] over the positions that are True in `real` [B, T], summed over B."""
    u = wide(u)
    real = torch.ones_like(u[..., 0], dtype=torch.bool) if real is None else real.to(u.device)
    counts = real.sum(1, dtype=u.dtype).clamp_min(1)[:, None]
    # relative to a token of the sequence itself, so that V is 0 and not its rounding where all tokens are the same
    origin = u[torch.arange(len(u), device=u.device), real.int().argmax(1)]
    moved = (u - origin[:, None]) * real[..., None]
    shift = moved.sum(1) / counts
    varying = (moved - shift[:, None]) * real[..., None]
    lengths = (origin + shift).norm(dim=1) * counts[:, 0].sqrt() * real.any(1)
    return Energies(lengths.sum(), varying.flatten(1).norm(dim=1).sum())


def _is_time_first(module: nn.Module) -> bool:
    """Return whether a stack's tensors are [T, B, D], as torch.nn's are unless told otherwise."""
    attentions = (m for m in module.modules() if isinstance(m, nn.MultiheadAttention))
    return any(not attention.batch_first for attention in attentions)
