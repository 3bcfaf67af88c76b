"""Verb `probe`."""

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Cache, Device, Json, TrustCode, cache_folder, examples
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.pipeline.probe_run import ProbedRun
    from deepnet.probes.recorder import Record

PROBE_EXAMPLES = examples(
    "deepnet probe runs/mine                  # its latest checkpoint",
    "deepnet probe runs/mine --step 3000 --all",
    "deepnet probe runs/mine/bundle --json",
)
_TITLES = {
    "norm_input": "norm in",
    "branch_ratio": "branch",
    "sparsity": "non-zero",
    "attention_entropy": "entropy",
    "gradient_norm": "gradient",
    "similarity": "similar",
    "token_mean_energy": "mean",
    "model_update": "moved",
}
_OUTSIDE = ("embedding", "final")
"""What a stack has besides its layers."""
_SHOWN_IN_FULL = 16
"""Layers up to which a table has a row for each."""
_ENDS = 3
"""Layers shown at either end of a longer one."""

Column = tuple[str, list[float | None]]


def probe(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder, or a bundle in one.", show_default=False),
    ],
    step: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure the checkpoint of this step, not the latest."),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Sentences of the valid part to measure on.",
            show_default="probes.sentences of the recipe",
        ),
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--all", help="Show every layer of a deep stack.")
    ] = False,
    device: Device = "auto",
    cache: Cache = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Measure the layers of a run's model on a few sentences: norm inputs, branches, attention, gradients, movement.

    Writes nothing. The model update is how far each layer's output has moved since the run's first weights, relative to
    where it was; docs/probes.md says what each column is.
    """
    from deepnet.pipeline.probe_run import probe_run

    output = Output(as_json=as_json)
    found = probe_run(
        run,
        step=step,
        sentences=sentences,
        device=device,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        report=output.say,
    )
    output.result(found.to_dict(), show=lambda: _show(output, found, every_layer=every_layer))


def _show(output: Output, found: "ProbedRun", *, every_layer: bool) -> None:
    updates = ", ".join(f"{step:,}" for step in found.steps)
    output.say(f"{found.weights}: after {updates} updates")
    output.say(f"{found.sentences} sentences of the valid part, loss {found.loss:.4g} per token")
    for stack in ("encoder", "decoder"):
        columns = _columns(found.readings, stack)
        if columns:
            _show_stack(output, stack, columns, every_layer=every_layer)
    outside = [
        (probe.replace("_", " "), key, values[0])
        for probe, table in found.readings.items()
        for key, values in table.items()
        if _stack_of(key) is None
    ]
    output.say()
    output.table(["outside the stacks", "", ""], outside)


def _show_stack(output: Output, stack: str, columns: list[Column], *, every_layer: bool) -> None:
    layers = len(columns[0][1])
    shown = list(range(layers)) if every_layer else _chosen(columns, layers)
    output.say(f"\n{stack}")
    output.table(
        ["layer", *(title for title, _ in columns)],
        [[row + 1, *(values[row] for _, values in columns)] for row in shown],
    )
    if len(shown) < layers:
        output.say(
            f"{len(shown)} of {layers:,} layers: the first and last {_ENDS}, in each column the one farthest "
            "from the median and the first that is not finite; --all shows every layer"
        )


def _columns(readings: "Record", stack: str) -> list[Column]:
    """Return what there is of each layer of a stack; the gradients of a site's roles are taken together."""
    columns: list[Column] = []
    for probe, title in _TITLES.items():
        table = {
            key.removeprefix(stack).removeprefix("."): values
            for key, values in readings.get(probe, {}).items()
            if _stack_of(key) == stack
        }
        if probe == "gradient_norm":
            table = _by_site(table)
        if probe == "token_mean_energy":
            table = {key: values for key, values in table.items() if not key}
        columns += [(f"{title}\n{site}", values) for site, values in table.items()]
    return columns


def _by_site(roles: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Return the norms of all roles of a site together; None where one of them is not finite."""
    sites: dict[str, list[list[float | None]]] = {}
    for key, values in roles.items():
        sites.setdefault(key.partition(".")[0], []).append(values)
    return {site: [_length(row) for row in zip(*held, strict=True)] for site, held in sites.items()}


def _length(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return math.hypot(*known) if len(known) == len(values) else None


def _chosen(columns: list[Column], layers: int) -> list[int]:
    """Return the rows to show: all of a shallow stack, else its ends and what stands out in each column."""
    if layers <= _SHOWN_IN_FULL:
        return list(range(layers))
    rows = {*range(_ENDS), *range(layers - _ENDS, layers)}
    for _, values in columns:
        rows |= _standing_out(values)
    return sorted(rows)


def _standing_out(values: list[float | None]) -> set[int]:
    """Return the row that is farthest from the median, and the first one after layer 1 that is not finite."""
    known = {row: value for row, value in enumerate(values) if value is not None}
    missing = [row for row in range(1, len(values)) if row not in known][:1]
    if not known:
        return set(missing)
    middle = median(known.values())
    return {max(known, key=lambda row: _distance(known[row], middle)), *missing}


def _distance(value: float, middle: float) -> float:
    """Return how many times a value is larger or smaller than the middle, as a logarithm; of zeros the difference."""
    if value * middle > 0:
        return abs(math.log(value / middle))
    return abs(value - middle)


def _stack_of(key: str) -> str | None:
    """Return the stack whose layers a key goes through, None for what belongs to no layer."""
    stack, _, rest = key.partition(".")
    inside = stack in ("encoder", "decoder") and rest.partition(".")[0] not in _OUTSIDE
    return stack if inside else None
