"""DeepNorm with ends that a recipe cannot choose: what the study of the ends takes apart."""

from dataclasses import dataclass, replace

from deepnet.schemes import deepnorm
from deepnet.schemes.base import Constant, Ends, Init, StackContext


@dataclass(frozen=True, kw_only=True)
class DeepNorm(deepnorm.Scheme):
    """DeepNorm whose embeddings are drawn smaller, and multiplied back where they enter, where they leave, or both."""

    smaller: float = 1.0
    """What the draw d_model^(-1/2) is divided by."""
    enters: float = 1.0
    """What an embedded row is multiplied by beside sqrt(d_model)."""
    leaves: float = 1.0
    """What the logits are multiplied by."""

    def ends(self, context: StackContext) -> Ends:
        """Return DeepNorm's ends with that draw and those multipliers."""
        planned, width = super().ends(context), context.d_model
        draw = Init("normal", width**-0.5 / self.smaller)
        return replace(
            planned,
            init={**planned.init, "embedding": draw, "vocabulary": draw},
            embedding_multiplier=width**0.5 * self.enters,
            logit_scale=Constant(self.leaves),
        )
