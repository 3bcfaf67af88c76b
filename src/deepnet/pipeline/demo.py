"""The demo: a deep DeepNorm translator, and a Post-LN one beside it for the first tenth of the updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deepnet.errors import DivergenceError
from deepnet.pipeline.curves import draw_curves
from deepnet.pipeline.preparing import CACHE
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.run import FinishedRun, run_recipe
from deepnet.pipeline.shipped import shipped_recipe
from deepnet.record import RunFolder, read_jsonl
from deepnet.training.sinks.progress import ProgressDisplay

RECIPE = "demo"
"""The shipped recipe of the demo; the Post-LN run differs in scheme.name and stops after a tenth of the updates."""
NAMES = {"post_ln": "Post-LN", "deepnorm": "DeepNorm"}
TITLE = "German to English, 18 + 18 layers: the same data, seed, recipe and schedule"


@dataclass(frozen=True)
class DemoResult:
    """What the demo came to, as it was."""

    folder: Path
    picture: Path
    rows: list[dict[str, Any]]
    """Per model: name, updates, validation loss, BLEU, signature, why it ended."""
    same_step: dict[str, float]
    """Validation loss of each model at the last update that both were validated at, and that update as "step"."""
    samples: list[tuple[str, str, str]]
    """Five times source, reference, translation by the DeepNorm model."""


def run_demo(
    out: str | Path, *, seed: int = 1, cache: Path = CACHE, console: Console | None = None
) -> DemoResult:
    """Train both, Post-LN first, and compare them; a demo that was interrupted goes on where it stopped."""
    console = console or Console()
    folder = Path(out)
    path = shipped_recipe(RECIPE)
    steps = load_recipe(path).training.max_steps
    limits = {"post_ln": steps // 10, "deepnorm": steps}
    rows = []
    for scheme, limit in limits.items():
        recipe = load_recipe(
            path,
            [f"scheme.name={scheme}", f"training.max_steps={limit}", f"training.seed={seed}"],
        )
        console.print(f"\n{NAMES[scheme]}, {limit:,} updates")
        rows.append(_run(recipe, scheme, folder, cache, console))
    return DemoResult(
        folder, _picture(folder), rows, _at_same_step(folder), _samples(folder / "deepnorm")
    )


def _run(
    recipe: Recipe, scheme: str, folder: Path, cache: Path, console: Console
) -> dict[str, Any]:
    """Train, translate and score one model; a divergence is a result, not an end."""
    out = folder / scheme
    with ProgressDisplay(console) as display:
        watch = _Watch(scheme, folder, display, console)
        try:
            run = run_recipe(
                recipe,
                out=out,
                resume=RunFolder(out).recipe_path.exists(),
                cache=cache,
                report=console.print,
                sinks=[watch],
            )
        except DivergenceError as error:
            console.print(str(error))
            return _row(scheme, out, None)
    if run.training.stopped == "interrupted":
        raise KeyboardInterrupt
    return _row(scheme, out, run)


@dataclass(frozen=True)
class _Watch:
    """Shows the loss of one run as it grows, with the other's at the same update beside it."""

    scheme: str
    folder: Path
    display: ProgressDisplay
    console: Console

    def __call__(self, record: Mapping[str, Any]) -> None:
        if "validation_loss" not in record:
            if self.console.is_terminal:
                self.display(record)
            return
        losses = {self.scheme: record["validation_loss"]}
        for other in NAMES:
            if other != self.scheme:
                losses |= _loss_at(self.folder / other, record["step"], name=other)
        shown = "   ".join(
            f"{NAMES[name]:>8} {loss:5.2f} {_bar(loss)}" for name, loss in losses.items()
        )
        self.console.print(f"update {record['step']:>5,}   validation loss  {shown}")
        _picture(self.folder)


def _bar(loss: float) -> str:
    """Return the loss as a bar, three characters a nat."""
    return ("#" * round(3 * loss)).ljust(27)


def _validations(run: Path) -> dict[int, float]:
    records = read_jsonl(RunFolder(run).metrics_path)
    return {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}


def _loss_at(run: Path, step: int, *, name: str) -> dict[str, float]:
    found = _validations(run)
    return {name: found[step]} if step in found else {}


def _at_same_step(folder: Path) -> dict[str, float]:
    curves = {name: _validations(folder / name) for name in NAMES}
    shared = set.intersection(*(set(curve) for curve in curves.values()))
    if not shared:
        return {}
    step = max(shared)
    return {"step": step, **{name: curve[step] for name, curve in curves.items()}}


def _picture(folder: Path) -> Path:
    path = folder / "curves.png"
    runs = {name: RunFolder(folder / scheme).metrics_path for scheme, name in NAMES.items()}
    draw_curves(runs, path, title=TITLE)
    return path


def _row(scheme: str, out: Path, run: FinishedRun | None) -> dict[str, Any]:
    losses = _validations(out)
    scores = run.scores if run else None
    return {
        "model": NAMES[scheme],
        "updates": max(losses, default=0),
        "validation_loss": min(losses.values(), default=None),
        "bleu": scores["bleu"] if scores else None,
        "chrf": scores["chrf"] if scores else None,
        "signature": scores["signature"]["bleu"] if scores else None,
        "ended": run.training.stopped if run else "diverged",
    }


def _samples(run: Path, count: int = 5) -> list[tuple[str, str, str]]:
    """Return source, reference and translation of sentences spread evenly over the test part."""
    columns = [
        (run / "outputs" / f"test.{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("source", "reference", "translation")
    ]
    step = len(columns[0]) // count
    return list(zip(*(column[step // 2 :: step][:count] for column in columns), strict=True))
