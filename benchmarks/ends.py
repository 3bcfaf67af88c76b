"""The ends apart: what holds a deep model back at its embedding and vocabulary, by how much, and for how long.

    DEEPNET_DATA=FOLDER python benchmarks/ends.py --out runs/ends
    python benchmarks/ends.py --out runs/ends --groups mechanism schemes
    python benchmarks/ends.py --out runs/ends --render

Groups of cells on Multi30k by the recipe of the grid of schemes (300 updates unless said), but for the first:

    settling   on tatoeba-en-de, one seed: what the rule of the default was found on
    mechanism  one thing at a time: a row's rate, its length, its draw, the logits' scale; one end at a time; and the
               cheap rival, a higher rate for everything
    positions  sinusoids, which are added to the rows, and rotary angles, which are not, under three kinds of rows;
               rotary angles where a translation starts from padding, a row of zeros, instead of eos: 1,000 updates
               of the shipped recipe, with BLEU
    factor     the rule's learning-rate multiplier, a third and three times of it, over width, rate, batch and
               vocabulary; the rule over depth
    optimizers multipliers 10, 30 and 100 under AdamW, SGD and LAMB
    duration   the rule in 1,200 and 4,800 updates
    schemes    every scheme of the grid with the ends it had and the default of today
    one_text   next token and masked tokens, the ends they had and the default, under rotary angles and sinusoids

From `factor` on all but those named otherwise have rotary angles, which fast rows do not outgrow; `settling` and
`mechanism` have sinusoids.
Each variant is compared with `old` of the same setting at the same seed; the interval is Student's, 95%, over the
differences. No cell of `settling` is in another group: other text, other seeds.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cells import run_groups, study_parser, train_cell
from deepnet.bundle import load_bundle
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.settling import default_ends
from deepnet.record import read_jsonl
from deepnet.schemes.catalogue import scheme_table
from deepnet.transformer.scales import scaled
from ends_tables import render
from scheme_grid import OPTIONS

HERE = Path(__file__).resolve().parent
SEEDS = (11, 12, 13)
TATOEBA = ("data.corpus=tatoeba-en-de", "data.test_split=test")
OLD = "ends.embedding_lr_multiplier=1.0"


def rate(multiplier: float) -> tuple[str, ...]:
    """Return the settings of an embedding that learns so many times as fast."""
    return (f"ends.embedding_lr_multiplier={float(multiplier)}",)


def apart(**options: float) -> tuple[str, ...]:
    """Return the settings of DeepNorm with ends that only this study has."""
    named = [f"scheme.{name}={float(value)}" for name, value in options.items()]
    return ("scheme.name=ends_schemes:DeepNorm", OLD, *named)


UNTIED = "model.tie_embeddings=none"
MECHANISM: dict[str, tuple[str, ...]] = {
    "old": (OLD,),
    "rate x30": rate(30),
    "rate x100": rate(100),
    "draw / 30, multiplied back at both ends": apart(smaller=30, enters=30, leaves=30),
    "draw / 30, multiplied back where it enters": apart(smaller=30, enters=30),
    "draw / 30, multiplied back where it leaves": apart(smaller=30, leaves=30),
    "unit rows, the old draw": (OLD, "ends.rows=unit", "ends.embedding_std=0.1443375673"),
    "unit rows, FixNorm's draw": (OLD, "ends.rows=unit"),
    "unit rows, the old draw, rate x30": (
        "ends.rows=unit",
        "ends.embedding_std=0.1443375673",
        *rate(30),
    ),
    "every rate x3": (OLD, "optimizer.lr=3e-3"),
    "every rate x10": (OLD, "optimizer.lr=1e-2"),
    "gradient clipped at 0.1": (OLD, "training.clip_norm=0.1"),
    "warm-up twice as long": (OLD, "schedule.warmup_steps=200"),
    "untied": (OLD, UNTIED),
    "untied, rate x30 where it enters": (
        UNTIED,
        *rate(30),
        "ends.vocabulary_lr_multiplier=1.0",
    ),
    "untied, rate x30 where it leaves": (UNTIED, OLD, "ends.vocabulary_lr_multiplier=30.0"),
    "untied, rate x30 at both ends": (UNTIED, *rate(30)),
}


def layers(encoder: int, decoder: int | None = None) -> tuple[str, ...]:
    """Return the settings of so many layers, as many in the decoder unless told otherwise."""
    return (
        f"model.encoder_layers={encoder}",
        f"model.decoder_layers={encoder if decoder is None else decoder}",
    )


def width(d_model: int) -> tuple[str, ...]:
    """Return the settings of a width."""
    return (f"model.d_model={d_model}", f"model.ffn_dim={d_model * 8 // 3}")


def updates(number: int) -> tuple[str, ...]:
    """Return the settings of a run of so many updates."""
    return (f"training.max_steps={number}", f"schedule.decay_steps={number}")


FACTOR_SETTINGS: dict[str, tuple[str, ...]] = {
    "6 + 6 layers": layers(6),
    "width 96, 6 + 6": (*layers(6), *width(96)),
    "width 256, 6 + 6": (*layers(6), *width(256)),
    "rate 3e-4, 6 + 6": (*layers(6), "optimizer.lr=3e-4"),
    "rate 3e-3, 6 + 6": (*layers(6), "optimizer.lr=3e-3"),
    "batch 256, 6 + 6": (*layers(6), "batching.max_tokens=256"),
    "batch 4,096, 6 + 6": (*layers(6), "batching.max_tokens=4096"),
    "vocabulary 1,000, 6 + 6": (*layers(6), "tokenizer.vocab_size=1000"),
    "vocabulary 8,000, 6 + 6": (*layers(6), "tokenizer.vocab_size=8000"),
}
DEPTHS = {f"{n} + {n} layers": layers(n) for n in (50, 100)}
MULTIPLES = {"a third of the rule": 1 / 3, "the rule": 1, "three times the rule": 3}
ROTARY = "model.positions=rotary"
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adamw, 6 + 6": (*layers(6), "optimizer.name=adamw", "optimizer.weight_decay=0.1"),
    "sgd, 6 + 6": (
        *layers(6),
        "optimizer.name=sgd",
        "optimizer.lr=0.3",
        "optimizer.momentum=0.9",
    ),
    "lamb, 6 + 6": (*layers(6), "optimizer.name=lamb", "optimizer.lr=5e-3"),
}
DURATIONS: dict[str, tuple[str, ...]] = {
    "6 + 6 layers, 4,800 updates": (*layers(6), *updates(4800)),
    "18 + 18 layers, 1,200 updates": updates(1200),
}

_SHIPPED = (
    *layers(12),
    *width(96),
    UNTIED,
    *updates(1000),
    "tokenizer.vocab_size=8000",
    "model.dropout=0.3",
    "optimizer.lr=2e-3",
    "schedule.warmup_steps=300",
    "training.validate_every=250",
    "validation.bleu=true",
    "validation.bleu_sentences=1014",
)
_ROWS = {"old": (OLD,), "default": (), "unit rows": (OLD, "ends.rows=unit")}
_FROM_PADDING = "model.decoder_start=padding"
POSITIONS: dict[str, tuple[str, ...]] = {
    **_ROWS,
    **{f"rotary, {name}": ("model.positions=rotary", *rows) for name, rows in _ROWS.items()},
    "rotary from padding, old": ("model.positions=rotary", _FROM_PADDING, OLD),
    "rotary from padding, default": ("model.positions=rotary", _FROM_PADDING),
}

SETTLING: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "18 + 18 layers": ((), (3, 10, 30, 100)),
    "18 + 18 layers, 1,200 updates": (updates(1200), (10, 30, 100)),
    "18 + 18 layers, width 96, rate 2e-3, 500 updates": (
        (*width(96), "optimizer.lr=2e-3", *updates(500), "schedule.warmup_steps=150"),
        (10, 30, 100),
    ),
    "6 + 6 layers": (layers(6), (10, 30, 100, 300)),
    "6 + 6 layers, rate 3e-4": ((*layers(6), "optimizer.lr=3e-4"), (10, 30, 100, 300)),
    "6 + 6 layers, rate 3e-3": ((*layers(6), "optimizer.lr=3e-3"), (10, 30, 100)),
}
"""Setting: its own part of the recipe, and the multipliers tried there."""


@dataclass(frozen=True)
class Cell:
    """One training run: a variant of the ends in a setting, at a seed."""

    group: str
    setting: str
    variant: str
    seed: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        words = f"{self.group} {self.setting} {self.variant} seed{self.seed}"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in words)

    def recipe(self) -> Recipe:
        """Return the grid's recipe with what is this cell's, its own scheme's needs included."""
        seed = f"training.seed={self.seed}"
        return load_recipe(_recipe(self), [f"scheme.name={_scheme(self)}", *self.settings, seed])


def _recipe(cell: Cell) -> Path:
    one_text = cell.group == "one_text"
    return HERE / ("scheme_grid_next_token.toml" if one_text else "scheme_grid.toml")


def _scheme(cell: Cell) -> str:
    return cell.setting if cell.group == "schemes" else "deepnorm"


def cells_of(
    group: str, rows: dict[str, tuple[str, ...]], columns: dict[str, tuple[str, ...]]
) -> list[Cell]:
    """Return every variant in every setting, one seed of all first."""
    return [
        Cell(group, setting, variant, seed, (*rows[setting], *columns[variant]))
        for seed, setting, variant in product(SEEDS, rows, columns)
    ]


def settling_cells() -> list[Cell]:
    """Return the cells on which the rule was found."""
    variants = {name: MECHANISM[name] for name in ("old", "unit rows, FixNorm's draw")}
    cells = []
    for setting, (own, multipliers) in SETTLING.items():
        columns = {**variants, **{f"rate x{n}": rate(n) for n in multipliers}}
        cells += [
            Cell("settling", setting, variant, 1, (*TATOEBA, *own, *chosen))
            for variant, chosen in columns.items()
        ]
    return cells


def rotary(rows: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the settings with rotary angles."""
    return {setting: (*own, ROTARY) for setting, own in rows.items()}


def around_the_rule(rows: dict[str, tuple[str, ...]]) -> Iterator[Cell]:
    """Yield the old ends and multiples of the rule's multiplier, which differs by setting, one seed of all first."""
    cells = [
        cell
        for setting, own in rotary(rows).items()
        for cell in cells_of(
            "factor",
            {setting: own},
            {"old": (OLD,), **{name: rate(n * rule(own)) for name, n in MULTIPLES.items()}},
        )
    ]
    yield from sorted(cells, key=lambda cell: cell.seed)


def rule(settings: tuple[str, ...]) -> float:
    """Return the multiplier of the default in a setting."""
    recipe = load_recipe(HERE / "scheme_grid.toml", ["scheme.name=deepnorm", *settings])
    ends = default_ends(recipe, vocab_size=recipe.tokenizer.vocab_size)
    return ends.embedding_lr_multiplier or 1.0


def all_cells() -> list[Cell]:
    """Return every cell of every group."""
    translators = [
        row["name"] for row in scheme_table() if "encoder_decoder" in row["architectures"]
    ]
    same_decay = {
        f"rate x{n}": (*rate(n), f"ends.embedding_weight_decay_multiplier={1 / n}")
        for n in (10, 30, 100)
    }
    default = {"old": (OLD,), "default": ()}
    masked = ("model.architecture=encoder_only", *layers(18, 0))
    one_text = {
        **{name: (ROTARY, *ends) for name, ends in default.items()},
        **{f"sinusoids, {name}": ends for name, ends in default.items()},
    }
    return [
        *settling_cells(),
        *cells_of("mechanism", {"18 + 18 layers": ()}, MECHANISM),
        *cells_of("positions", {"12 + 12 layers, width 96": _SHIPPED}, POSITIONS),
        *around_the_rule(FACTOR_SETTINGS),
        *cells_of("factor", rotary(DEPTHS), {"old": (OLD,), "the rule": ()}),
        *cells_of("optimizers", rotary(OPTIMIZERS), {"old": (OLD,), **same_decay}),
        *cells_of("duration", rotary(DURATIONS), {"old": (OLD,), "the rule": ()}),
        *cells_of("schemes", rotary({n: OPTIONS.get(n, ()) for n in translators}), default),
        *cells_of("one_text", {"next token": (), "masked tokens": masked}, one_text),
    ]


def measured(run: Path) -> dict[str, Any]:
    """Return what the probes read of cross-attention, how long the rows are, and BLEU where it was asked for."""
    records = read_jsonl(run / "metrics.jsonl")
    scores = {r["step"]: r["validation_bleu"] for r in records if "validation_bleu" in r}
    return {**collapse(run), **row_sizes(run), **({"bleu": scores} if scores else {})}


def row_sizes(run: Path) -> dict[str, Any]:
    """Return the root mean square of what tokens enter with, median over the rows; added positions have 0.71."""
    if not (run / "bundle").exists():
        return {}
    model = load_bundle(run / "bundle").model
    stack = model.stacks()[0]
    with torch.no_grad():
        rows = scaled(model.source_embedding.rows()[:-1], stack.entry.multiplier)
    return {"row_size": rows.square().mean(1).sqrt().median().item()}


def collapse(run: Path) -> dict[str, Any]:
    """Return the entropy of cross-attention, in nats, mean over the layers, at each reading of the probes.

    Where it is that of even attention, all tokens of the encoder's output look alike.
    """
    readings = read_jsonl(run / "probes.jsonl")
    entropies = {one["step"]: one["attention_entropy"].get("decoder.cross") for one in readings}
    return {
        "cross_entropy": {
            step: statistics.mean(found) for step, found in entropies.items() if found
        }
    }


def main() -> None:
    options = study_parser(__doc__).parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = {cell.name: cell for cell in all_cells()}
    if options.cell:
        train_cell(cells[options.cell], options.out, measure=measured)
    elif options.render:
        render(options.out, list(cells.values()))
    else:
        run_groups(cells.values(), options)


if __name__ == "__main__":
    main()
