"""Standard deviation of the logits over the vocabulary, mean over all positions, padding included.

It grows as a model becomes sure; one that explodes shows here last. Models without a vocabulary have no reading.

Compare the z-loss of Chowdhery et al., PaLM, arXiv 2204.02311, which holds down the same growth.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from deepnet.probes.listening import ForwardProbe, first_tensor, on_output, wide
from deepnet.probes.place import OUTPUT


class LogitScale(ForwardProbe):
    """Standard deviation of the logits over the vocabulary."""

    def _listen(self, hooks: ExitStack) -> None:
        if self.anatomy.vocabulary is not None:
            on_output(self.anatomy.model, self._look, hooks)

    def _look(self, output: Any) -> None:
        self._count(OUTPUT, wide(logits_of(output)).std(-1, correction=0).mean())


def logits_of(output: Any) -> Tensor:
    """Return the logits among what a model returns: Hugging Face puts a loss before them."""
    if isinstance(output, Mapping) and "logits" in output:
        logits: Tensor = output["logits"]
        return logits
    if isinstance(output, (tuple, list)):
        output = tuple(x for x in output if not isinstance(x, Tensor) or x.dim() > 1)
    return first_tensor(output)
