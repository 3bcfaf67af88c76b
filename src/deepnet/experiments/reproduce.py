"""An experiment from its name to its verdict: cells, table, picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deepnet.data.corpora import CACHE
from deepnet.errors import ConfigError
from deepnet.experiments.base import Experiment, FinishedCell
from deepnet.experiments.catalogue import experiment_class
from deepnet.experiments.cells import Report, finished_cells, run_cells
from deepnet.experiments.pictures import save_picture
from deepnet.experiments.verdicts import Verdict
from deepnet.lock import locked_folder
from deepnet.record import atomic_write, environment, write_json

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Reproduced:
    """What became of a claim."""

    folder: Path
    verdict: Verdict
    num_cells: int
    num_finished: int


def reproduce(
    name: str,
    *,
    out: str | Path | None = None,
    full: bool = False,
    seeds: Sequence[int] | None = None,
    processes: int = 2,
    device: str = "auto",
    cache: Path = CACHE,
    report: Report = print,
) -> Reproduced:
    """Ask a paper's figure again: its default grid, or `full`, the whole one, with those seeds or its own.

    Writes table.md, metrics.json, figure.png and cells.jsonl into `out`, by default results/NAME (or NAME-full), also
    where it is interrupted; cells that are done are not done again. Raises ConfigError for an unknown name, for no
    process or seed, and where `out` has cells of another grid.
    """
    kind = experiment_class(name)
    experiment = kind.full() if full else kind()
    if seeds is not None:
        experiment = replace(experiment, seeds=_checked(seeds))
    if processes < 1:
        raise ConfigError(f"processes is {processes}; expected at least 1")
    folder = Path(out) if out is not None else Path("results") / (f"{name}-full" if full else name)
    return run_experiment(
        experiment,
        name=name,
        out=folder,
        processes=processes,
        device=device,
        cache=cache,
        report=report,
    )


def run_experiment(
    experiment: Experiment,
    *,
    name: str,
    out: Path,
    processes: int = 1,
    device: str = "auto",
    cache: Path = CACHE,
    report: Report = print,
) -> Reproduced:
    """Run what is left of an experiment, whatever its grid, and write its results into `out`.

    Raises ConfigError where another process does so there.
    """
    out.mkdir(parents=True, exist_ok=True)
    with locked_folder(out):
        try:
            run_cells(
                experiment, out=out, processes=processes, device=device, cache=cache, report=report
            )
        finally:
            cells = finished_cells(experiment, out)
            if cells:
                write_results(experiment, cells, name=name, out=out)
    return Reproduced(out, experiment.verdict(cells), len(experiment.cells()), len(cells))


def write_results(
    experiment: Experiment, cells: Sequence[FinishedCell], *, name: str, out: Path
) -> None:
    """Write metrics.json, table.md and figure.png of the cells that are finished."""
    kind, verdict = type(experiment), experiment.verdict(cells)
    about = {
        "name": name,
        "claim": kind.claim,
        "source": kind.source,
        "comparable": kind.comparable,
    }
    write_json(
        out / "metrics.json",
        {
            "format_version": FORMAT_VERSION,
            **about,
            "verdict": verdict.to_dict(),
            "environment": environment(),
            "recipe": experiment.recipe(cells[0].cell).model_dump(),
            "num_cells": len(experiment.cells()),
            "num_finished": len(cells),
        },
    )
    with atomic_write(out / "table.md") as file:
        file.write(page(experiment, cells, name=name).encode())
    save_picture(experiment.draw(cells), out / "figure.png")


def page(experiment: Experiment, cells: Sequence[FinishedCell], *, name: str) -> str:
    """Return table.md: claim, verdict with its numbers, table, and why the size is comparable."""
    kind, verdict = type(experiment), experiment.verdict(cells)
    seeds = ",".join(map(str, experiment.seeds))
    parts = [
        f"# {name}: {verdict.answer}",
        f"> {kind.claim}\n>\n> {kind.source}",
        "\n".join(f"* {finding.sentence()}" for finding in verdict.findings),
        experiment.table(cells),
        f"{len(cells)} of {len(experiment.cells())} cells. `deepnet reproduce {name} --seeds {seeds}`. "
        "Ratios are geometric means over the seeds with Student's 95% interval.",
        f"{kind.comparable}",
    ]
    return "\n\n".join(parts) + "\n"


def _checked(seeds: Sequence[int]) -> tuple[int, ...]:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(
            f"seeds are {', '.join(map(str, seeds)) or 'none'}; expected different whole numbers from 0 on"
        )
    return tuple(seeds)
