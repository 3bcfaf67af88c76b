"""Activation sparsity as BranchNorm counts it: the fraction of activations of a feed-forward that are NOT zero.

What the second matrix reads. In our own models that is taken before its norm, shift and dropout; in others, in training
mode, zeros that dropout made between the activation and that matrix count as zeros: measure in evaluation mode.

Source: Liu et al., BranchNorm, arXiv 2305.02790, the analysis of redundant parameters, after Li et al., The Lazy
Neuron Phenomenon, arXiv 2210.06313.
"""

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from deepnet.probes.listening import ForwardProbe, on_input, on_method
from deepnet.probes.place import Place, site_places


class Sparsity(ForwardProbe):
    """Fraction of non-zero activations of each feed-forward."""

    def _listen(self, hooks: ExitStack) -> None:
        for place, found in site_places(self.anatomy):
            if found.site.kind != "ffn":
                continue
            branch, see = found.part.branch, partial(self._look, place)
            if branch is not None:
                on_method(branch, "activate", see, hooks)
            else:
                on_input(found.part.weights[-1].owner, see, hooks)

    def _look(self, place: Place, activations: Tensor, *_: Tensor) -> None:
        self._count(place, torch.count_nonzero(activations).double() / activations.numel())
