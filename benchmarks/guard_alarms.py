"""Runs without a planted fault: which are healthy, whether the guard spoke, and how long before the loss said so."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

from deepnet.errors import DeepNetError
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import read_jsonl
from deepnet.training.guard.config import GuardConfig
from guard_loss import LEVEL, levelled_off
from scheme_grid import outcome, word_entropy


@dataclass(frozen=True)
class Run:
    """A run without a planted fault, under the guard as it is by default."""

    name: str
    setup: str
    """Text, architecture, scheme, depth, width and optimiser: runs that share it count as one set-up."""
    outcome: str
    """trains, plateau or diverged."""
    losses: list[float]
    """By update."""
    incidents: list[dict[str, Any]]
    last: float | None
    """The last validation loss."""
    is_provoked: bool = False
    """Whether it was set up not to learn: without warm-up, at a rate too high."""

    @property
    def is_healthy(self) -> bool:
        """Whether it was set up to learn, and learnt more than the frequencies of the words."""
        return self.outcome == "trains" and not self.is_provoked

    @property
    def lead(self) -> int | None:
        """By how many updates the guard spoke before the loss; None where one of them was silent."""
        says = levelled_off(self.losses)
        return says - self.incidents[0]["step"] if says and self.incidents else None


class Judge:
    """Tells what became of a run by the rule of the grid of schemes, whatever the guard said."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}

    def outcome(self, result: Mapping[str, Any], recipe: Recipe) -> str:
        """Return trains, plateau or diverged, from the "losses" of the validations and what "stopped" the run."""
        text = f"{recipe.data} {recipe.tokenizer} {recipe.cleaning}"
        if text not in self._levels:
            self._levels[text] = word_entropy(recipe)
        return outcome(dict(result), *self._levels[text])


def run_of(result: Mapping[str, Any], recipe: Recipe, judge: Judge) -> Run:
    """Return the run of one of our cells."""
    validations = result["validations"]
    said = {"losses": validations, "stopped": result["stopped"]}
    return Run(
        name=f"{result['setup']}, seed {result['seed']}",
        setup=setup_of(recipe),
        outcome=judge.outcome(said, recipe),
        losses=list(result["losses"].values()),
        incidents=result["incidents"],
        last=list(validations.values())[-1] if validations else None,
        is_provoked=result["group"] == "trouble",
    )


def setup_of(recipe: Recipe) -> str:
    """Return what tells set-ups apart: neither seeds nor rates nor ends do."""
    data, model = recipe.data, recipe.model
    languages = data.language or f"{data.source_language}-{data.target_language}"
    text = f"{data.corpus or data.train_source or data.train_text} {languages}"
    shape = f"{model.architecture} {model.encoder_layers} + {model.decoder_layers}, {model.d_model}"
    return f"{text}, {recipe.scheme['name']}, {shape}, {recipe.optimizer.name}"


def foreign(folders: Sequence[Path], judge: Judge) -> tuple[list[Run], Counter[str]]:
    """Return the runs of other studies that count, and how many do not, by the reason."""
    runs: list[Run] = []
    left_out: Counter[str] = Counter()
    for folder in folders:
        for path in sorted(folder.rglob("recipe.json")):
            try:
                run = _foreign(path.parent, judge)
            except DeepNetError as error:
                run = f"cannot be read: {type(error).__name__}"
            if isinstance(run, str):
                left_out[run] += 1
            else:
                runs.append(run)
    return runs, left_out


def _foreign(folder: Path, judge: Judge) -> Run | str:
    """Return the run in a folder, or why it does not count."""
    recipe = load_recipe(folder)
    if recipe.guard != GuardConfig():
        return "made with other limits or actions of the guard than today's defaults"
    records = read_jsonl(folder / "metrics.jsonl")
    if not records or records[-1]["progress"] < 1:
        return "not finished"
    losses: list[float] = []
    for one in records:  # a record is the mean since the one before
        if one.get("loss") is not None:
            losses += [one["loss"]] * (one["step"] - len(losses))
    validations = {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}
    return Run(
        name=folder.name,
        setup=setup_of(recipe),
        outcome=judge.outcome({"losses": validations, "stopped": ""}, recipe),
        losses=losses,
        incidents=read_jsonl(folder / "incidents.jsonl"),
        last=list(validations.values())[-1] if validations else None,
    )


def lead(runs: Sequence[Run]) -> str:
    """Return a row for each run that did not learn: when the guard said so, and when the loss did."""
    lines = [
        "## Runs set up to fail, and those that did not learn",
        "",
        f"The loss says so, from update 20 on, where the mean of its last {LEVEL.latest:.0%} is less than "
        f"{LEVEL.fall:g} nats below that of the {LEVEL.earlier:.0%} before.",
        "",
        "| run | last validation loss | became | the guard says so | the loss says so | sooner by |",
        "|---|---:|---|---|---:|---:|",
    ]
    troubled = [run for run in runs if not run.is_healthy]
    for run in troubled:
        first = next(iter(run.incidents), None)
        told = f"{first['step']}: {first['kind']}, {first['where'] or 'no place'}" if first else "-"
        end = "" if run.last is None else f"{run.last:.3f}"
        says = (_or_dash(levelled_off(run.losses)), _or_dash(run.lead))
        lines.append(f"| {' | '.join([run.name, end, run.outcome, told, *says])} |")
    if leads := leads_of(runs):
        spoken = sum(bool(run.incidents) for run in troubled)
        lines += [
            "",
            f"The guard spoke in {spoken} of {len(troubled)}; where both spoke it was {min(leads)} to {max(leads)} "
            f"updates ahead of the loss, {statistics.median(leads):g} in the median.",
            "",
            "![The guard and the loss on runs that do not learn](../results/guard/alarms.png)",
        ]
    return "\n".join(lines) + "\n"


def leads_of(runs: Sequence[Run]) -> list[int]:
    """Return the leads over the loss in the runs that did not learn, where both spoke."""
    return [run.lead for run in runs if not run.is_healthy and run.lead is not None]


def alarm_sentence(runs: Sequence[Run]) -> str:
    """Return in how many healthy runs the guard spoke."""
    healthy = [run for run in runs if run.is_healthy]
    alarmed, setups = alarmed_setups(healthy)
    spoke = sum(bool(run.incidents) for run in healthy)
    levelled = sum(levelled_off(run.losses) is not None for run in healthy)
    return (
        f"in {len(healthy)} healthy runs of {setups} set-ups it spoke in {spoke}: a false alarm in at most "
        f"{upper_bound(alarmed, setups):.0%} of set-ups like these (95%); the rule on the loss spoke in {levelled}"
    )


def alarmed_setups(healthy: Sequence[Run]) -> tuple[int, int]:
    """Return in how many set-ups the guard spoke, and their number."""
    setups = {run.setup for run in healthy}
    return len({run.setup for run in healthy if run.incidents}), len(setups)


def alarms(ours: Sequence[Run], others: Sequence[Run], left_out: Mapping[str, int]) -> str:
    """Return how many healthy runs there were, in how many the guard spoke, and the bound that their number gives."""
    lines = [
        "## Healthy runs",
        "",
        "| | runs | set-ups | with an alarm | at most, of set-ups | the loss says so |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in (("this study", ours), ("others", others)):
        healthy = [run for run in runs if run.is_healthy]
        if not healthy:
            continue
        alarmed, setups = alarmed_setups(healthy)
        spoke = sum(bool(run.incidents) for run in healthy)
        levelled = sum(levelled_off(run.losses) is not None for run in healthy)
        bound = f"{upper_bound(alarmed, setups):.1%}"
        row = [name, str(len(healthy)), str(setups), str(spoke), bound, str(levelled)]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "At most: the one-sided 95% bound on the share of set-ups like these."]
    lines += [f"- left out, {number}: {why}" for why, number in left_out.items()]
    alarmed_runs = [run for run in (*ours, *others) if run.is_healthy and run.incidents]
    for run in alarmed_runs:
        said = ", ".join(f"{one['step']}: {one['kind']} ({one['sign']})" for one in run.incidents)
        lines.append(f"- {run.name}: {said}")
    return "\n".join(lines) + "\n"


def nearness(results: Sequence[Mapping[str, Any]]) -> str:
    """Return how near each run without a fault came to each limit of the guard, in parts of the limit."""
    measured = [one for one in results if not one["fault"] and "nearest" in one]
    names = list(measured[0]["nearest"]) if measured else []
    lines = [
        "## How near these runs came to the limits",
        "",
        "Largest part of each limit; last the smallest part of the last stack's largest gradient that a layer had "
        "for ten updates (limit 1e-4).",
        "",
        f"| run | {' | '.join(name.replace('_', ' ') for name in names)} | layer gradient |",
        "|---" + "|---:" * (len(names) + 1) + "|",
    ]
    for one in measured:
        parts = [f"{one['nearest'][name]:.2f}" for name in names]
        row = [f"{one['setup']}, seed {one['seed']}", *parts, f"{one['smallest_share']:.1e}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def upper_bound(events: int, number: int) -> float:
    """Return the one-sided 95% bound on a probability of which `events` of `number` came true (Clopper and Pearson)."""
    if events >= number:  # none at all, or all of them
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        chance = sum(
            comb(number, k) * middle**k * (1 - middle) ** (number - k) for k in range(events + 1)
        )
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return high


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
