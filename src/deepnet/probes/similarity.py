"""How alike the outputs of adjacent layers are: the mean over positions of the cosine between them.

Near 1 a layer changes nothing but the length. The reading of layer l compares it with layer l - 1; layer 1 has none.

Source: Liu et al., BranchNorm, arXiv 2305.02790, the analysis of redundant parameters.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from deepnet.anatomy.base import FoundSite
from deepnet.probes.listening import ForwardProbe, on_output, peeked, wide
from deepnet.probes.place import Place, layer_places


class Similarity(ForwardProbe):
    """Mean cosine of the outputs of adjacent layers."""

    def _listen(self, hooks: ExitStack) -> None:
        self._below: dict[Place, Tensor] = {}
        hooks.callback(self._below.clear)
        for place, found in layer_places(self.anatomy):
            on_output(found.part.owner, partial(self._compare, place, found), hooks)

    def _compare(self, place: Place, found: FoundSite, output: Any) -> None:
        here = wide(peeked(found, output))
        below = self._below.pop(place._replace(layer=place.layer - 1), None)
        if below is not None:
            self._count(place, F.cosine_similarity(below, here, dim=-1).mean())
        self._below[place] = here
