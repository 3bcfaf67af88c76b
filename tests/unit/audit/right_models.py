"""Right models: every scheme in every tying, for its optimisers, with and without biases, in many writings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from writings import WRITINGS, Writing

from deepnet.audit.examine import audit
from deepnet.audit.report import AuditReport
from deepnet.errors import ConfigError
from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

TYINGS = ("all", "decoder", "none")
FAMILIES = ("sgd", "adam", "lamb")
SIZES = {"d_model": 32, "ffn_dim": 64, "num_heads": 2, "vocab_size": 60, "dropout": 0.0}


@dataclass(frozen=True)
class Right:
    """A scheme with its options and all that may be chosen beside it."""

    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)
    family: str = "adam"
    tying: str = "none"
    biases: bool = True
    writing: Writing = WRITINGS[0]

    @property
    def claimed(self) -> ResidualScheme:
        return load_scheme(self.scheme, self.options)

    def model(self) -> Transformer | None:
        """Return the model as it is written; None where the scheme refuses that, or the writing changes nothing."""
        torch.manual_seed(1)
        model = self._planned()
        if model is None or not self._can_have_biases(model):
            return None
        if self.scheme == "ngpt":  # its rows are given unit length before step 0
            model.scheme.after_update(model)
        return model if self.writing(model) else None

    def inputs(self, model: Transformer) -> tuple[Tensor | None, ...]:
        generator = torch.Generator().manual_seed(1)
        source = torch.randint(2, 50, (2, 7), generator=generator)
        target = torch.randint(2, 50, (2, 5), generator=generator)
        return (source, None, target) if model.encoder and model.decoder else (source,)

    def audit(self) -> AuditReport | None:
        """Return the audit of the model against what it is; None where there is no such model."""
        model = self.model()
        if model is None:
            return None
        return audit(model, self.inputs(model), claims=self.claimed, optimizer_family=self.family)

    def _planned(self) -> Transformer | None:
        architecture = self.claimed.architectures[0]
        config = TransformerConfig(
            **SIZES,
            architecture=architecture,
            encoder_layers=0 if architecture == "decoder_only" else 2,
            decoder_layers=0 if architecture == "encoder_only" else 2,
            tie_embeddings=self.tying,
        )
        try:
            return Transformer(config, self.claimed, optimizer_family=self.family)
        except ConfigError:
            return None

    def _can_have_biases(self, model: Transformer) -> bool:
        """Take the biases away where none are wanted; return False where they are and the scheme has none."""
        linears = [m for s in model.sites() for m in s.branch.modules() if isinstance(m, nn.Linear)]
        if self.biases:
            return all(linear.bias is not None for linear in linears)
        for linear in linears:
            linear.bias = None
        return True


def schemes() -> Iterator[Right]:
    """Yield every scheme by itself, DeepNorm also in the essay's form, for every family of optimisers."""
    for name in list_schemes():
        yield Right(name)
    for family in FAMILIES:
        yield Right("deepnorm", {"convention": "essay"}, family)
