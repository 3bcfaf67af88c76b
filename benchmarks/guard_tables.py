"""The tables, pictures and sentences of benchmarks/guard_runs.py, made of the finished cells."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cells import result_path
from deepnet.record import write_json
from guard_alarms import (
    Judge,
    Run,
    alarm_sentence,
    alarms,
    foreign,
    lead,
    leads_of,
    nearness,
    run_of,
)
from guard_cells import FAULTY, SEEDS, Cell, all_cells
from guard_faults import FAULTS
from guard_pictures import draw_faults, draw_trouble
from guard_rivals import TREATMENTS
from measuring import compared

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "guard"
PAGES = (HERE.parent / "docs" / "guard.md", HERE.parent / "README.md")
NEAR = 0.05
"""Nats above its clean run at which the worst seed may end where a fault counts as withstood; fixed beforehand."""
Result = dict[str, Any]


def render(out: Path, *, also: Sequence[Path] = ()) -> None:
    """Write the tables, the pictures, the numbers of all finished cells, and the sentences into the pages."""
    cells = all_cells()
    paths = [result_path(out, name) for name in cells]
    found: list[Result] = [json.loads(path.read_text()) for path in paths if path.exists()]
    planted = [one for one in found if one["group"] == "faults"]
    judge = Judge()
    unsettled = [one for one in _clean(found, "guard") if one["group"] != "faults"]
    ours = [run_of(one, _cell(one).recipe(), judge) for one in unsettled]
    others, left_out = foreign(also, judge)
    sections = {
        "faults": fault_table(planted),
        "summary": fault_summary(planted),
        "clipping": clipping(found),
        "lead": lead(ours),
        "alarms": alarms(ours, others, left_out),
        "nearness": nearness(found),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "metrics.json", {"cells": found}, indent=None)
    head = f"# {len(found)} of {len(cells)} cells are finished\n"
    (RESULTS / "table.md").write_text("\n".join([head, *sections.values()]))
    ends = {
        (fault, treatment): [e for e in differences(planted, fault, treatment) if e is not None]
        for fault, treatment in product(FAULTS, TREATMENTS)
    }
    draw_faults(ends, RESULTS / "faults.png")
    draw_trouble(ours, RESULTS / "alarms.png")
    said = {"clipped": sections["clipping"].splitlines()[-1], "sentence": sentence(planted, ours)}
    for page in PAGES:
        page.write_text(filled(page.read_text(), {**sections, **said}))


def _cell(one: Result) -> Cell:
    return Cell(*(one[name] for name in ("group", "setup", "fault", "treatment", "seed")))


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return a page with what stands between `<!-- guard: NAME -->` and `<!-- end -->` made anew.

    A part of several lines loses its heading there, as the page has its own.
    """
    for name, text in parts.items():
        begin, end = f"<!-- guard: {name} -->", "<!-- end -->"
        before, found, rest = page.partition(begin)
        inner = f"\n{text.partition(chr(10) * 2)[2].strip()}\n" if "\n" in text else text
        if found:
            page = "".join([before, begin, inner, end, rest.partition(end)[2]])
    return page


def sentence(planted: list[Result], runs: Sequence[Run]) -> str:
    """Return what all of it comes to, in a line."""

    def saved(treatment: str) -> int:
        return sum(_withstands(planted, fault, treatment) for fault in FAULTS)

    parts = [
        f"of {len(FAULTS)} faults {saved('guard, back')} are withstood by a guard that skips and goes back, "
        f"{saved('clip')} by clipping at 1, {saved('six sigma')} by a skip at six standard deviations, {saved('none')} "
        f"by nothing ({len({one['seed'] for one in planted})} of {len(SEEDS)} seeds; all finish, none more than "
        f"{NEAR:g} nats above its clean run)"
    ]
    if leads := leads_of(runs):
        parts.append(
            f"on runs that were set up to fail, or did not learn, it speaks {min(leads)} to {max(leads)} "
            "updates before the loss does"
        )
    parts.append(alarm_sentence(runs))
    return "; ".join(parts)


# Faults -------------------------------------------------------------------------------------------------------------


def last(one: Result) -> float | None:
    """Return the validation loss at the end, None where the run did not get there."""
    return None if one["stopped"] else list(one["validations"].values())[-1]


def by_seed(results: list[Result], fault: str, treatment: str) -> dict[int, Result]:
    """Return the cells of a fault under a treatment."""
    return {r["seed"]: r for r in results if (r["fault"], r["treatment"]) == (fault, treatment)}


def differences(results: list[Result], fault: str, treatment: str) -> list[float | None]:
    """Return by how much each seed ends above its clean run; None where it did not get there."""
    clean = by_seed(results, "", "none")
    pairs = [(one, clean.get(s)) for s, one in by_seed(results, fault, treatment).items()]
    ends = [(last(one), last(other)) for one, other in pairs if other]
    return [None if a is None or b is None else a - b for a, b in ends]


def fault_table(results: list[Result]) -> str:
    """Return a row for each fault and each outcome of it; treatments that gave the same runs share one."""
    different = {one["mark"] for one in results}
    lines = [
        "## Faults planted at update 150 of 300",
        "",
        f"{FAULTY}. {len(results)} cells are {len(different)} different runs: those of a row are the same to the last "
        "bit. Last validation loss less that of the clean run of the same seed, nats per target token, with Student's "
        "95% interval.",
        "",
        "| fault | done about it | less the clean run | interval | worst seed | stopped | the guard, first seed |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for fault in ("", *FAULTS):
        for treatments in same_runs(results, fault):
            of_seed = by_seed(results, fault, treatments[0])
            ends = differences(results, fault, treatments[0])
            there = [end for end in ends if end is not None]
            mean, interval = compared(there)
            worst = f"{max(there):+.3f}" if there else ""
            stopped = f"{len(ends) - len(there)} of {len(ends)}" if len(there) < len(ends) else ""
            said = said_first(results, fault, treatments)
            row = [fault or "none", " = ".join(treatments), mean, interval, worst, stopped, said]
            lines.append(f"| {' | '.join(row)} |" if of_seed else "")
    return "\n".join(lines) + "\n"


def same_runs(results: list[Result], fault: str) -> list[list[str]]:
    """Return the treatments of a fault, those together that gave the same runs at every seed that both have."""
    groups: list[list[str]] = []
    for treatment in TREATMENTS:
        found = marks(results, fault, treatment)
        same = (g for g in groups if _agree(marks(results, fault, g[0]), found))
        if found:
            group = next(same, None)
            if group is None:
                groups.append([treatment])
            else:
                group.append(treatment)
    return groups


def marks(results: list[Result], fault: str, treatment: str) -> dict[int, str]:
    """Return, by seed, what runs share that are the same to the last bit."""
    return {seed: one["mark"] for seed, one in by_seed(results, fault, treatment).items()}


def _agree(some: Mapping[int, str], others: Mapping[int, str]) -> bool:
    both = some.keys() & others.keys()
    return bool(both) and all(some[seed] == others[seed] for seed in both)


def said_first(results: list[Result], fault: str, treatments: list[str]) -> str:
    """Return what the guard among some treatments said of the first seed; the skips of the simple rule."""
    for treatment in reversed(treatments):
        first = next(iter(by_seed(results, fault, treatment).values()))
        if first["incidents"]:
            return "; ".join(
                f"{one['step']}: {one['kind']}, {one['where'] or 'no place'}, {one['action'].replace('_', ' ')}"
                for one in first["incidents"][:3]
            )
        if treatment == "six sigma":
            return f"{first['skipped']} skipped"
    return ""


def fault_summary(results: list[Result]) -> str:
    """Return a row for each fault and a column for each treatment, and in how many faults each withstood."""
    lines = [
        "## What was left of each fault",
        "",
        "Mean over the seeds of the last validation loss less the clean run's; half of its 95% interval in brackets.",
        "",
        f"| fault | {' | '.join(TREATMENTS)} |",
        "|---" * (len(TREATMENTS) + 1) + "|",
    ]
    for fault in FAULTS:
        shown = [_shown(results, fault, name) for name in TREATMENTS]
        lines.append(f"| {fault} | {' | '.join(shown)} |")
    withstood = [str(sum(_withstands(results, f, name) for f in FAULTS)) for name in TREATMENTS]
    lines += [
        f"| withstood | {' | '.join(withstood)} |",
        "",
        f"Withstood: all seeds finish, none more than {NEAR:g} nats above its clean run. "
        "`guard, lower` was tried on the learning rates alone.",
        "",
        "![By how much each seed ends above its clean run](../results/guard/faults.png)",
    ]
    return "\n".join(lines) + "\n"


def _withstands(results: list[Result], fault: str, treatment: str) -> bool:
    ends = differences(results, fault, treatment)
    return bool(ends) and all(end is not None and end <= NEAR for end in ends)


def _shown(results: list[Result], fault: str, treatment: str) -> str:
    """Return what was left of a fault; of a guard that warns, that its runs are those of none."""
    same = _agree(marks(results, fault, "none"), marks(results, fault, treatment))
    if treatment == "guard" and same:
        return "as none"
    return _short(differences(results, fault, treatment))


def _short(ends: list[float | None]) -> str:
    there = [end for end in ends if end is not None]
    if not ends:
        return ""
    if len(there) < len(ends):
        return f"{len(ends) - len(there)} of {len(ends)} stopped"
    mean, interval = compared(there)
    half = f" ({(max(map(float, interval.split(' to '))) - float(mean)):.3f})" if interval else ""
    return f"{mean}{half}"


# Clipping -----------------------------------------------------------------------------------------------------------


def clipping(results: list[Result]) -> str:
    """Return what clipping at 1 changes where nothing is wrong, a row for each set-up."""
    plain = {(r["setup"], r["seed"]): r for r in _clean(results, "guard")}
    clipped = {(r["setup"], r["seed"]): r for r in _clean(results, "clip")}
    lines = [
        "## Clipping at 1 where nothing is wrong",
        "",
        "Last validation loss, clipped less not clipped, same seed; updates of 300 whose gradient was longer than 1.",
        "",
        "| set-up | seed | not clipped | clipped less that | longer than 1 |",
        "|---|---:|---:|---:|---:|",
    ]
    found: dict[str, list[float]] = {}
    for key in plain.keys() & clipped.keys():
        before, after = last(plain[key]), last(clipped[key])
        if before is None or after is None:
            continue
        found.setdefault(key[0], []).append(after - before)
        row = [key[0], str(key[1]), f"{before:.3f}", f"{after - before:+.3f}"]
        lines.append(f"| {' | '.join([*row, str(clipped[key]['long'])])} |")
    lines[6:] = sorted(lines[6:])
    means = [statistics.mean(values) for values in found.values()]
    if not means:
        return "\n".join([*lines, "", "No set-up has been trained clipped yet."]) + "\n"
    mean, interval = compared(means)
    worse, better = sum(m > NEAR for m in means), sum(m < -NEAR for m in means)
    lines += [
        "",
        f"Over {len(means)} set-ups: {mean} ({interval}); more than {NEAR:g} worse in {worse}, better in {better}.",
    ]
    return "\n".join(lines) + "\n"


def _clean(results: list[Result], treatment: str) -> Iterator[Result]:
    return (r for r in results if not r["fault"] and r["treatment"] == treatment)
