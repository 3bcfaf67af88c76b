"""What the experiments on theory share: models, a fixed random batch, repeated seeds, and the files of a result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepnet.experiments.tables import number
from deepnet.record import environment, write_json
from deepnet.schemes.base import Architecture, OptimizerFamily
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTH, HEADS, VOCABULARY = 64, 4, 100
SENTENCES, LENGTH = 4, 16
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Trial:
    """A model in float64 without dropout and the batch it is asked about."""

    model: Transformer
    inputs: tuple[Tensor | None, ...]
    labels: Tensor

    def loss(self) -> Tensor:
        """Return the mean cross-entropy against random labels, in nats per token."""
        return F.cross_entropy(self.model(*self.inputs).flatten(0, 1), self.labels.flatten())


def trial(
    architecture: Architecture,
    layers: int,
    scheme: str,
    options: dict[str, Any] | None = None,
    *,
    family: OptimizerFamily,
    seed: int,
) -> Trial:
    """Return `layers` layers per stack, drawn from `seed` in torch's default type, with a batch drawn from it, too."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=layers if architecture != "decoder_only" else 0,
        decoder_layers=layers if architecture != "encoder_only" else 0,
        d_model=WIDTH,
        ffn_dim=4 * WIDTH,
        num_heads=HEADS,
        vocab_size=VOCABULARY,
        dropout=0.0,
    )
    model = Transformer(config, load_scheme(scheme, options), optimizer_family=family)
    source, target, labels = torch.randint(2, VOCABULARY - 1, (3, SENTENCES, LENGTH))
    inputs = (source, None, target) if architecture == "encoder_decoder" else (source,)
    return Trial(model.eval(), inputs, labels)


def over_seeds(measure: Callable[[int], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, lowest and highest of every quantity that `measure(seed)` returns."""
    runs = [measure(seed) for seed in SEEDS]
    return {
        key: {
            "median": sorted(run[key] for run in runs)[len(runs) // 2],
            "low": min(run[key] for run in runs),
            "high": max(run[key] for run in runs),
        }
        for key in runs[0]
    }


def save(name: str, *, config: dict[str, Any], rows: list[dict[str, Any]], table: str) -> Path:
    """Write metrics.json and table.md of results/NAME, and return the folder."""
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"d_model": WIDTH, "ffn_dim": 4 * WIDTH, "num_heads": HEADS, "vocabulary": VOCABULARY}
    batch = {"sentences": SENTENCES, "length": LENGTH, "seeds": list(SEEDS), "dtype": "float64"}
    settings = shape | batch | config
    write_json(
        folder / "metrics.json",
        {"format_version": 1, "environment": environment(), "config": settings, "rows": rows},
    )
    (folder / "table.md").write_text(table, encoding="utf-8")
    return folder


def interval(spread: dict[str, float]) -> str:
    """Return "median [lowest, highest]"."""
    return f"{number(spread['median'])} [{number(spread['low'])}, {number(spread['high'])}]"
