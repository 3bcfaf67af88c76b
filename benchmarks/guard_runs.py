"""What the guard says of runs that go wrong and of runs that do not, and what it saves.

    DEEPNET_DATA=FOLDER python benchmarks/guard_runs.py --out runs/guard
    python benchmarks/guard_runs.py --out runs/guard --render

Three groups of runs on Multi30k, by the recipe of the grid of schemes:

    settling   on which the guard's thresholds and the rule below were settled: depths 6, 12 and 24, seeds from 11 on,
               and two runs of a first round of alarms (seeds 1 to 3) that the guard cried at
    alarms     18 + 18 Post-LN layers without warm-up, three seeds; ten healthy runs of other schemes and depths
    faults     three faults planted at update 150, three seeds each, with the guard and without, beside clean runs

The rule for when the loss says that a run has levelled off, settled on the first group: the mean of the last 50
training losses is less than 0.05 nats below the mean of the 50 before them.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cells import result_path, run_cells
from deepnet.errors import DivergenceError
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import read_jsonl, write_json
from deepnet.training import loop, trained, update
from deepnet.training.guard.judge import Guard, Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.optimization import rate
from deepnet.training.session import Session
from measuring import commit, device, versions

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "scheme_grid.toml"
RESULTS = HERE.parent / "results" / "guard"
FAULTY_STEP = 150
NO_WARMUP = ("schedule.warmup_steps=0",)
UNGUARDED = ("guard.spike=off", "guard.explosion=off", "guard.plateau=off")
GUARDED = ("guard.spike=skip", "guard.explosion=roll_back", "guard.nan=skip")


@dataclass(frozen=True)
class Run:
    """One training run: what is its own in the recipe, and which fault is planted in it."""

    group: str
    name: str
    scheme: str
    layers: int
    seed: int
    steps: int
    settings: tuple[str, ...] = ()
    fault: str = ""

    def overrides(self) -> list[str]:
        """Return the settings of the recipe that differ from the grid's."""
        return [
            f"scheme.name={self.scheme}",
            f"model.encoder_layers={self.layers}",
            f"model.decoder_layers={self.layers}",
            f"training.seed={self.seed}",
            f"training.max_steps={self.steps}",
            f"schedule.decay_steps={self.steps}",
            "training.save_every=50",
            "ends.embedding_lr_multiplier=1.0",  # as when its thresholds were settled
            *self.settings,
        ]


def settling_runs() -> list[Run]:
    """Return the runs on which thresholds were settled."""
    bad = [("post_ln", layers, seed, NO_WARMUP) for layers, seed in ((12, 11), (12, 12), (24, 11))]
    bad += [("deepnorm", 12, 11, (*NO_WARMUP, "optimizer.lr=0.03"))]
    good = [("post_ln", 6, 11, ()), ("deepnorm", 12, 11, ()), ("pre_ln", 12, 11, ())]
    good += [("rezero", 12, 11, ()), ("layernorm_scaling", 12, 11, ()), ("normformer", 12, 11, ())]
    good += [("t_fixup", 12, 12, ()), ("hyper_connections", 6, 11, ())]
    good += [("branchnorm", 12, 12, ("scheme.T=100",))]
    runs = [
        Run("settling", f"{kind}_{scheme}{layers}_seed{seed}", scheme, layers, seed, 300, settings)
        for kind, rows in (("bad", bad), ("good", good))
        for scheme, layers, seed, settings in rows
    ]
    cried_at = [
        ("branchnorm", 18, 3, ("scheme.T=100",)),  # the encoder's gradient
        ("t_fixup", 8, 2, ()),  # medians of ten losses, steps relative to the first output
    ]
    return runs + [
        Run("settling", f"good_{scheme}{layers}_seed{seed}", scheme, layers, seed, 1000, settings)
        for scheme, layers, seed, settings in cried_at
    ]


def alarm_runs() -> list[Run]:
    """Return three runs that level off and ten that do not."""
    bad = [
        Run("alarms", f"bad_post_ln18_seed{seed}", "post_ln", 18, seed, 400, NO_WARMUP)
        for seed in (4, 5, 6)
    ]
    good = [
        ("post_ln", 5, 4, ()),
        ("admin", 6, 4, ()),
        ("rezero", 7, 5, ()),
        ("t_fixup", 8, 6, ()),
        ("normformer", 9, 4, ()),
        ("sub_ln", 10, 5, ()),
        ("pre_ln", 14, 6, ()),
        ("branchnorm", 18, 4, ("scheme.T=100",)),
        ("deepnorm", 18, 5, ()),
        ("deepnorm", 24, 6, ()),
    ]
    return bad + [
        Run("alarms", f"good_{scheme}{layers}_seed{seed}", scheme, layers, seed, 1000, settings)
        for scheme, layers, seed, settings in good
    ]


def fault_runs() -> list[Run]:
    """Return clean runs, and each fault with the guard and without."""
    clean = [
        Run("faults", f"clean_seed{seed}", "deepnorm", 6, seed, 300, UNGUARDED)
        for seed in range(1, 11)
    ]
    return clean + [
        Run("faults", f"{fault}_{how}_seed{seed}", "deepnorm", 6, seed, 300, settings, fault)
        for fault in FAULTS
        for how, settings in (("unguarded", UNGUARDED), ("guarded", GUARDED))
        for seed in (1, 2, 3)
    ]


def all_runs() -> list[Run]:
    """Return every run, those of show first."""
    return [*fault_runs(), *alarm_runs(), *settling_runs()]


class RecordingGuard(Guard):
    """A guard that writes down every loss, and by how much the run stayed clear of each threshold."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []
        self.extremes = {"gradient": 0.0, "norm_input": 0.0, "rise": -math.inf, "above_lowest": 0.0}
        self.shares: list[float] = []
        self.largest_step_update = 0.0
        RECORDING.append(self)

    def judge(self, signals: Signals) -> Verdict | None:
        """Judge as ever, and write down."""
        self.losses.append(signals.loss)
        self.shares.append(min(self.history.layer_shares(signals).values()))
        if signals.is_finite and len(self.history.normal()) >= 16:
            self._measure(signals)
        return super().judge(signals)

    def judge_model_update(self, step: int, step_update: float) -> Verdict | None:
        """Judge as ever, and write down."""
        self.largest_step_update = max(self.largest_step_update, step_update)
        return super().judge_model_update(step, step_update)

    def _measure(self, signals: Signals) -> None:
        highest = self.history.highest()
        inputs = signals.norm_inputs / highest.norm_inputs
        found = {
            "gradient": signals.gradient_norm / highest.gradient_norm,
            "norm_input": float(inputs.max()) if len(inputs) else 0.0,
            "rise": signals.loss - highest.loss,
        }
        latest, lowest = self._latest_loss(), self.memory.lowest_loss
        if latest is not None and lowest is not None:
            found["above_lowest"] = latest - lowest
        self.extremes = {
            name: max(value, found.get(name, value)) for name, value in self.extremes.items()
        }


RECORDING: list[RecordingGuard] = []


@contextmanager
def corrupt_batch() -> Iterator[None]:
    """Give one update random targets and a token count of 1: its gradient is hundreds of times too long."""
    original, done = loop.run_update, []

    def run(session: Session, update: Any, **how: Any) -> Any:
        if session.state.step + 1 == FAULTY_STEP and not done:
            done.append(True)
            update = replace(update, batches=[_scrambled(b) for b in update.batches], num_tokens=1)
        return original(session, update, **how)

    with mock.patch.object(loop, "run_update", run):
        yield


def _scrambled(batch: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    size = int(batch.target_out.max())
    noise = torch.randint(1, size, batch.target_out.shape, generator=generator)
    return replace(batch, target_out=noise)


@contextmanager
def nan_gradient() -> Iterator[None]:
    """Plant one NaN in the gradient of one role of one layer, once."""
    original, done = update._backward, []

    def backward(session: Session, of: Any, **how: Any) -> Any:
        loss = original(session, of, **how)
        if session.state.step + 1 == FAULTY_STEP and not done:
            done.append(True)
            weight = session.engine.model.encoder.layers[2].sublayers["ffn"].branch.fc1.weight
            weight.grad[0, 0] = math.nan
        return loss

    with mock.patch.object(update, "_backward", backward):
        yield


@contextmanager
def learning_rate_spike() -> Iterator[None]:
    """Make the learning rate of three updates two hundred times too large, once."""
    original, done = rate.learning_rate, []

    def learning_rate(step: int, **how: Any) -> float:
        faulty = FAULTY_STEP <= step + 1 < FAULTY_STEP + 3 and len(done) < 3
        if faulty:
            done.append(step)
        return original(step, **how) * (200 if faulty else 1)

    with mock.patch.object(rate, "learning_rate", learning_rate):
        yield


FAULTS: dict[str, Callable[[], Any]] = {
    "corrupt_batch": corrupt_batch,
    "nan_gradient": nan_gradient,
    "learning_rate_spike": learning_rate_spike,
}


def run_one(one: Run, out: Path) -> None:
    """Train one run and write what became of it."""
    folder = out / one.name
    fault = FAULTS[one.fault]() if one.fault else nullcontext()
    stopped = ""
    with mock.patch.object(trained, "Guard", RecordingGuard), fault:
        try:
            recipe = load_recipe(RECIPE, one.overrides())
            run_recipe(recipe, out=folder, score=False)
        except DivergenceError as error:
            stopped = str(error)
    guard = RECORDING[-1]
    records = read_jsonl(folder / "metrics.jsonl")
    validations = {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}
    write_json(
        result_path(out, one.name),
        {
            **asdict(one),
            "stopped": stopped,
            "validations": validations,
            "losses": [round(loss, 4) if math.isfinite(loss) else None for loss in guard.losses],
            "incidents": read_jsonl(folder / "incidents.jsonl"),
            "smallest_share": _sustained(guard.shares),
            "largest_step_update": guard.largest_step_update,
            "extremes": guard.extremes,
        },
    )


def _sustained(shares: list[float], updates: int = 10) -> float:
    """Return the least share that was not exceeded for so many updates in a row."""
    windows = [shares[i : i + updates] for i in range(len(shares) - updates + 1)]
    return min((max(window) for window in windows), default=1.0)


def levelled_off(losses: list[float]) -> int | None:
    """Return the first update at which the loss says that the run has levelled off, by the rule above."""
    for step in range(100, len(losses) + 1):
        latest, before = losses[step - 50 : step], losses[step - 100 : step - 50]
        if statistics.fmean(latest) > statistics.fmean(before) - 0.05:
            return step
    return None


def render(runs: list[Run], out: Path) -> None:
    """Write the tables, the figures and the numbers of all finished runs into results/."""
    found = [
        {**json.loads(result_path(out, run.name).read_text()), "curve": curve(out / run.name)}
        for run in runs
        if result_path(out, run.name).exists()
    ]
    groups = {name: [one for one in found if one["group"] == name] for name in GROUPS}
    RESULTS.mkdir(parents=True, exist_ok=True)
    where = {"device": device(), "versions": versions(), "commit": commit()}
    write_json(RESULTS / "metrics.json", {**where, "runs": found}, indent=None)
    parts = [f"# {len(found)} of {len(runs)} runs are finished\n", fault_table(groups["faults"])]
    parts += [alarm_table(groups["alarms"]), margin_table(groups["alarms"], groups["settling"])]
    (RESULTS / "table.md").write_text("\n".join(parts))
    draw_faults(groups["faults"], RESULTS / "faults.png")
    draw_alarms(groups["alarms"], RESULTS / "alarms.png")


GROUPS = ("faults", "alarms", "settling")


def last(one: dict[str, Any]) -> float | None:
    """Return the validation loss of the last update, None where the run did not get there."""
    return one["validations"].get(str(one["steps"]))


def clean_range(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the lowest and the highest last validation loss of the clean runs."""
    losses = [value for one in runs if not one["fault"] and (value := last(one)) is not None]
    return min(losses), max(losses)


def fault_table(runs: list[dict[str, Any]]) -> str:
    """Return a row for each fault, with and without the guard."""
    low, high = clean_range(runs)
    rows = [
        "## Faults planted at update 150 of 300\n",
        f"DeepNorm, 6 + 6 layers. {sum(not r['fault'] for r in runs)} clean seeds end at {low:.3f} to {high:.3f}.\n",
        "| fault | guard | last validation loss, seeds 1, 2, 3 | within the clean seeds | incidents of seed 1 |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        for settings, how in ((UNGUARDED, "off"), (GUARDED, "on")):
            of_row = [r for r in runs if r["fault"] == fault and r["settings"] == list(settings)]
            ends = [last(one) for one in of_row]
            inside = sum(end is not None and low <= end <= high for end in ends)
            told = [
                f"{one['kind']} at {one['step']}, {one['where']}, {one['action'].replace('_', ' ')}"
                for one in (of_row[0]["incidents"] if of_row else [])
            ]
            shown = ", ".join("stopped" if end is None else f"{end:.3f}" for end in ends)
            rows.append(
                f"| {fault.replace('_', ' ')} | {how} | {shown} | {inside} of {len(ends)} | {'; '.join(told) or '-'} |"
            )
    return "\n".join(rows) + "\n"


def alarm_table(runs: list[dict[str, Any]]) -> str:
    """Return a row for each run that levels off or should not raise an alarm."""
    rows = [
        "## Alarms\n",
        "| run | updates | first incident | the loss says so | sooner by | incidents | last validation loss |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for one in runs:
        first = next(iter(one["incidents"]), None)
        says = levelled_off(one["losses"]) if one["name"].startswith("bad") else None
        told = "none" if first is None else f"{first['step']}: {first['kind']}, {first['where']}"
        sooner = says - first["step"] if first and says else None
        end = last(one)
        rows.append(
            f"| {one['name']} | {len(one['losses'])} | {told} | {_or_dash(says)} | {_or_dash(sooner)} "
            f"| {len(one['incidents'])} | {'-' if end is None else f'{end:.3f}'} |"
        )
    return "\n".join(rows) + "\n"


def margin_table(*groups: list[dict[str, Any]]) -> str:
    """Return how near each run came to each threshold."""
    rows = [
        "## How near the runs came to the thresholds\n",
        "Smallest layer's gradient over the largest's in the decoder for ten updates; gradient norm and norm input "
        "over the highest of the 50 updates before; nats above those and above the lowest; largest model update of "
        "one step.\n",
        "| group | run | share 1e-4 | gradient 4 | norm input 4 | rise 1.5 | above lowest 1.5 | step update 1 |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in (one for group in groups for one in group):
        far = one["extremes"]
        rows.append(
            f"| {one['group']} | {one['name']} | {one['smallest_share']:.1e} | {far['gradient']:.2f} "
            f"| {far['norm_input']:.2f} | {far['rise']:.2f} | {far['above_lowest']:.2f} "
            f"| {one['largest_step_update']:.2g} |"
        )
    return "\n".join(rows) + "\n"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def draw_faults(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the training loss of faulty runs over that of the clean ones, a panel for each fault."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(FAULTS), sharey=True)
    for axes, fault in zip(panels, FAULTS, strict=True):
        for one in (one for one in runs if one["fault"] in ("", fault)):
            guarded = one["settings"] == list(GUARDED)
            colour, style = (
                ("0.75", "-")
                if not one["fault"]
                else (("tab:blue", "-") if guarded else ("tab:red", "--"))
            )
            steps, losses = zip(*one["curve"], strict=True)
            axes.plot(steps, losses, style, color=colour, linewidth=1.2)
        axes.axvline(FAULTY_STEP, color="0.4", linewidth=0.8, linestyle=":")
        axes.set(title=fault.replace("_", " "), xlabel="update", ylim=(5.0, 9.5))
    panels[0].set_ylabel("training loss, nats per token")
    for label, colour, style in (
        ("clean", "0.75", "-"),
        ("fault, no guard", "tab:red", "--"),
        ("fault, guard", "tab:blue", "-"),
    ):
        panels[0].plot([], [], style, color=colour, label=label)
    panels[0].legend(frameon=False)
    save(figure, path)


def draw_alarms(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the loss of the runs that level off, with what the guard and the loss say."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for one in runs:
        is_bad = one["name"].startswith("bad")
        steps, losses = smooth(list(enumerate(one["losses"], start=1)))
        axes.plot(steps, losses, color="tab:red" if is_bad else "0.8", zorder=2 if is_bad else 1)
        first, says = next(iter(one["incidents"]), None), levelled_off(one["losses"])
        if is_bad and first:
            axes.axvline(first["step"], color="tab:blue", linestyle="--", linewidth=1)
        if is_bad and says:
            axes.axvline(says, color="tab:red", linestyle=":", linewidth=1)
    for label, colour, style in (
        ("Post-LN, 18 + 18 layers, no warm-up", "tab:red", "-"),
        ("the guard says so", "tab:blue", "--"),
        ("the loss says so", "tab:red", ":"),
        ("healthy runs", "0.8", "-"),
    ):
        axes.plot([], [], style, color=colour, label=label)
    axes.set(xlabel="update", ylabel="training loss, nats per token", xlim=(0, 400))
    axes.legend(frameon=False)
    save(figure, path)


def curve(folder: Path) -> list[tuple[int, float]]:
    """Return the training loss by update as the run's record has it: without what was skipped or undone."""
    records = read_jsonl(folder / "metrics.jsonl")
    return [(r["step"], r["loss"]) for r in records if r.get("loss") is not None]


def smooth(losses: list[tuple[int, float]], updates: int = 10) -> tuple[list[int], list[float]]:
    """Return the means of so many updates."""
    groups = [losses[i : i + updates] for i in range(0, len(losses), updates)]
    return [g[-1][0] for g in groups], [statistics.fmean(loss for _, loss in g) for g in groups]


def save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--groups", nargs="*", help="only these: settling, alarms, faults")
    parser.add_argument("--run", help="one run, in this process")
    parser.add_argument("--render", action="store_true", help="write results/ from the runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {run.name: run for run in all_runs()}
    if options.run:
        run_one(runs[options.run], options.out)
    elif options.render:
        render(list(runs.values()), options.out)
    else:
        prepare_data(load_recipe(RECIPE), report=print)
        names = [n for n, run in runs.items() if not options.groups or run.group in options.groups]
        run_cells(
            names,
            out=options.out,
            processes=options.processes,
            arguments=lambda name: ("--run", name),
        )


if __name__ == "__main__":
    main()
