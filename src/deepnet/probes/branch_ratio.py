"""How much each branch adds to the stream: rms(b * f(x)) / rms(s * x), each after its scale.

What the terms are in models that are not ours, and in streams without an addition, is `AdditionProbe`'s.

Source: the essay's "analysis after the fact", Su, kexue.fm/archives/8978, for post-norm.
"""

from torch import Tensor

from deepnet.probes.additions import AdditionProbe
from deepnet.probes.listening import PooledProbe, sum_of_squares
from deepnet.probes.place import Place


class BranchRatio(AdditionProbe, PooledProbe):
    """Root mean square of what each branch adds over that of what it is added to."""

    def _see(self, place: Place, skip: Tensor, added: Tensor) -> None:
        self._count(place, sum_of_squares(added), sum_of_squares(skip))
