"""What the guard says of runs that go wrong and of runs that do not, and what it saves, beside simpler rules.

    DEEPNET_DATA=FOLDER python benchmarks/guard_runs.py --out runs/guard
    DEEPNET_DATA=FOLDER python benchmarks/guard_runs.py --out runs/guard --render [--healthy FOLDER ...]

Cells of 300 updates, width 48, one thread each; what has a result is not run again:

    faults     DeepNorm of 6 + 6 layers on Multi30k: each fault of guard_faults.py at update 150, and none, under each
               treatment of guard_rivals.py, five seeds
    setups     schemes, depths, texts, architectures and optimisers on which no limit was settled, once with the guard
               as it is by default and once clipped at 1
    trouble    runs that are meant not to learn: Post-LN without warm-up, rates too high

A run is healthy, whatever the guard says, where it `trains` by the rule of scheme_grid.py: its last validation loss is
at least 0.1 nats below the entropy of the words' frequencies. `--healthy` counts finished runs of other studies, if
they were made with today's defaults of the guard. guard_loss.py shows how the rule on the loss was found.
"""

import argparse
import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cells import result_path, run_groups, study_parser
from deepnet.errors import DivergenceError
from deepnet.pipeline.run import run_recipe
from deepnet.record import read_jsonl, write_json
from guard_cells import Cell, all_cells
from guard_faults import FAULTS, struck_by
from guard_rivals import TREATMENTS, Measured, judged_by
from guard_tables import render
from measuring import commit, device, versions


def run_one(cell: Cell, out: Path) -> None:
    """Train one cell from its beginning, write what became of it, and remove what it trained."""
    folder, stopped = out / cell.name, ""
    shutil.rmtree(folder, ignore_errors=True)  # a planted fault is not resumed
    treatment = TREATMENTS[cell.treatment]
    with judged_by(treatment.guard) as guards, struck_by(FAULTS.get(cell.fault)):
        try:
            finished = run_recipe(cell.recipe(), out=folder, score=False)
            if finished.training.stopped == "interrupted":
                raise SystemExit(f"{cell.name} was interrupted; run again")
        except DivergenceError as error:
            stopped = str(error)
    (guard,) = guards
    write_json(
        result_path(out, cell.name),
        {
            **asdict(cell),
            "stopped": stopped,
            **told(folder),
            **(guard.near() if isinstance(guard, Measured) else {}),
            "recoveries": guard.memory.num_recoveries,
            "device": device(),
            "versions": versions(),
            "commit": commit(),
        },
        indent=None,
    )
    shutil.rmtree(folder)


def told(run: Path) -> dict[str, Any]:
    """Return what a run folder tells: losses by step, validations, incidents, and a mark that equal runs share."""
    records = read_jsonl(run / "metrics.jsonl")
    measured = ("step", "lr", "loss", "gradient_norm", "validation_loss")
    mark = json.dumps([[one.get(name) for name in measured] for one in records])
    shown = ("step", "kind", "action", "where", "sign", "value", "limit")
    return {
        "losses": {one["step"]: one["loss"] for one in records if one.get("loss") is not None},
        "validations": {
            one["step"]: one["validation_loss"] for one in records if "validation_loss" in one
        },
        "long": sum((one.get("gradient_norm") or 0.0) > 1 for one in records),
        "skipped": sum(one.get("skipped_updates") or 0 for one in records),
        "incidents": [
            {name: one[name] for name in shown} for one in read_jsonl(run / "incidents.jsonl")
        ],
        "mark": hashlib.sha256(mark.encode()).hexdigest()[:16],
    }


def parse() -> argparse.Namespace:
    parser = study_parser(__doc__)
    parser.add_argument(
        "--healthy", nargs="*", type=Path, default=[], help="folders of runs of other studies"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = all_cells()
    if options.cell:
        run_one(cells[options.cell], options.out)
    elif options.render:
        render(options.out, also=options.healthy)
    else:
        run_groups(cells.values(), options)


if __name__ == "__main__":
    main()
