"""The cells of benchmarks/guard_runs.py: which set-ups are trained, with which faults, under which treatment."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from deepnet.pipeline.recipe import Recipe, load_recipe
from guard_faults import FAULTS
from guard_rivals import TREATMENTS
from scheme_grid import OPTIONS, RECIPES

SEEDS = (21, 22, 23, 24)
NO_WARMUP = "schedule.warmup_steps=0"
TATOEBA = ("data.corpus=tatoeba-en-de", "data.test_split=test")
CZECH = ("data.source_language=cs",)
FRENCH = ("data.source_language=fr",)
FROM_ENGLISH = ("data.source_language=en", "data.target_language=de")


@dataclass(frozen=True)
class Setup:
    """What is trained: a text, an architecture, a scheme, a depth, an optimiser."""

    scheme: str
    encoder: int
    decoder: int
    settings: tuple[str, ...] = ()

    @property
    def recipe(self) -> Path:
        """Return the recipe that it departs from: a translation, or one text where a stack is missing."""
        return RECIPES["translation" if self.encoder and self.decoder else "next_token"]

    def overrides(self) -> tuple[str, ...]:
        """Return what it has of its own."""
        masked = ("model.architecture=encoder_only",) if not self.decoder else ()
        sides = (
            f"model.encoder_layers={self.encoder}",
            f"model.decoder_layers={self.decoder}",
        )
        name = f"scheme.name={self.scheme}"
        return (name, *OPTIONS.get(self.scheme, ()), *masked, *sides, *self.settings)


FAULTY = "Multi30k, deepnorm 6 + 6"
SETUPS: dict[str, Setup] = {
    **{
        f"tatoeba, {scheme} {n} + {n}": Setup(scheme, n, n, TATOEBA)
        for scheme, n in {
            "deepnorm": 10,
            "post_ln": 4,
            "pre_ln": 8,
            "rezero": 6,
            "t_fixup": 5,
            "admin": 8,
            "sub_ln": 6,
            "branchnorm": 12,
            "b2t": 6,
            "dlcl": 6,
            "ds_init": 6,
            "dyt": 4,
            "peri_ln": 6,
            "keel": 6,
            "mix_ln": 6,
            "resi_dual": 6,
            "scale_norm": 6,
            "r_fixup": 4,
            "completep": 6,
        }.items()
    },
    "tatoeba, deepnorm 6 + 6, no warm-up": Setup("deepnorm", 6, 6, (*TATOEBA, NO_WARMUP)),
    "tatoeba, pre_ln 6 + 6, no warm-up": Setup("pre_ln", 6, 6, (*TATOEBA, NO_WARMUP)),
    "Multi30k cs-en, deepnorm 7 + 7": Setup("deepnorm", 7, 7, CZECH),
    "Multi30k fr-en, hyper_connections 4 + 4": Setup("hyper_connections", 4, 4, FRENCH),
    "Multi30k en-de, normformer 5 + 5": Setup("normformer", 5, 5, FROM_ENGLISH),
    "next token, deepnorm 12": Setup("deepnorm", 0, 12),
    "next token, ngpt 8": Setup("ngpt", 0, 8, (NO_WARMUP,)),
    "next token, hybrid_norm 8": Setup("hybrid_norm", 0, 8),
    "masked tokens, deepnorm 12": Setup("deepnorm", 12, 0),
    "masked tokens, pre_ln 9": Setup("pre_ln", 9, 0),
    "tatoeba, deepnorm 3 + 9, AdamW, dropout": Setup(
        "deepnorm",
        3,
        9,
        (*TATOEBA, "optimizer.name=adamw", "optimizer.weight_decay=0.1", "model.dropout=0.1"),
    ),
    "tatoeba, pre_ln 6 + 6, SGD, width 96": Setup(
        "pre_ln",
        6,
        6,
        (
            *TATOEBA,
            "optimizer.name=sgd",
            "optimizer.lr=0.3",
            "optimizer.momentum=0.9",
            "model.d_model=96",
            "model.ffn_dim=256",
        ),
    ),
    "tatoeba, deepnorm 6 + 6, 256 tokens an update": Setup(
        "deepnorm", 6, 6, (*TATOEBA, "batching.max_tokens=256")
    ),
}
TROUBLE: dict[str, tuple[Setup, tuple[int, ...]]] = {
    "Multi30k, post_ln 18 + 18, no warm-up": (Setup("post_ln", 18, 18, (NO_WARMUP,)), SEEDS[:3]),
    "tatoeba, post_ln 12 + 12, no warm-up": (
        Setup("post_ln", 12, 12, (*TATOEBA, NO_WARMUP)),
        SEEDS[:2],
    ),
    "next token, post_ln 24, no warm-up": (Setup("post_ln", 0, 24, (NO_WARMUP,)), SEEDS[:1]),
    "tatoeba, deepnorm 8 + 8, rate 0.03, no warm-up": (
        Setup("deepnorm", 8, 8, (*TATOEBA, NO_WARMUP, "optimizer.lr=0.03")),
        SEEDS[:1],
    ),
    "tatoeba, pre_ln 8 + 8, rate 0.03, no warm-up": (
        Setup("pre_ln", 8, 8, (*TATOEBA, NO_WARMUP, "optimizer.lr=0.03")),
        SEEDS[:1],
    ),
}


@dataclass(frozen=True)
class Cell:
    """One training run: a set-up at a seed, what is planted in it, and what is done about that."""

    group: str
    setup: str
    fault: str
    treatment: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's file."""
        words = f"{self.group} {self.setup} {self.fault or 'clean'} {self.treatment} {self.seed}"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in words)

    def recipe(self) -> Recipe:
        """Return the recipe with what is this cell's."""
        setup = setup_of(self)
        own = (
            f"training.seed={self.seed}",
            "training.log_every=1",
            "training.save_every=50",
            "training.validate_every=100",
        )
        settings = (*own, *setup.overrides(), *TREATMENTS[self.treatment].settings)
        return load_recipe(setup.recipe, settings)


def setup_of(cell: Cell) -> Setup:
    """Return what a cell trains."""
    troubled = {name: setup for name, (setup, _) in TROUBLE.items()}
    return {FAULTY: Setup("deepnorm", 6, 6), **SETUPS, **troubled}[cell.setup]


def fault_cells() -> list[Cell]:
    """Return every fault, and none, under every treatment.

    Lowering the rate is tried where it is the rate. A guard that warns trains as none does, to the last bit: one seed
    shows it.
    """
    return [
        Cell("faults", FAULTY, fault, treatment, seed)
        for seed, fault, treatment in product(SEEDS, ("", *FAULTS), TREATMENTS)
        if (treatment != "guard, lower" or fault.startswith("rate"))
        and (treatment != "guard" or seed == SEEDS[0])
    ]


def setup_cells() -> list[Cell]:
    """Return every set-up under the guard of today, then every one of them clipped."""
    return [
        Cell("setups", name, "", treatment, SEEDS[0])
        for treatment, name in product(("guard", "clip"), SETUPS)
    ]


def trouble_cells() -> list[Cell]:
    """Return the runs that are meant not to learn."""
    return [
        Cell("trouble", name, "", "guard", seed)
        for name, (_, seeds) in TROUBLE.items()
        for seed in seeds
    ]


def all_cells() -> dict[str, Cell]:
    """Return every cell by its name."""
    return {cell.name: cell for cell in (*trouble_cells(), *setup_cells(), *fault_cells())}
