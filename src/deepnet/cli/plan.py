"""Verb `plan`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepnet.cli.options import (
    Cache,
    Device,
    Json,
    Overrides,
    RecipePath,
    cache_folder,
    examples,
)
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.pipeline.plan_run import RunPlan, TimePlan

PLAN_EXAMPLES = examples(
    "deepnet plan demo",
    "deepnet plan mine.toml model.encoder_layers=500 model.decoder_layers=500",
    "deepnet plan mine.toml training.recompute=true batching.max_tokens=2048 --json",
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FLOPS = ("", "k", "M", "G", "T")

Row = tuple[object, ...]


def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    device: Device = "auto",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Tell what a run would take, before it begins: parameters, FLOPs, memory, disk and time.

    Prepares the text. Memory is found without any, by running both passes on tensors that have shapes and no numbers;
    time by timing a few layers. `deepnet train` refuses what this says cannot fit.
    """
    from deepnet.pipeline.plan_run import plan_run
    from deepnet.pipeline.recipe import load_recipe

    output = Output(as_json=as_json)
    found = plan_run(
        load_recipe(recipe, overrides or ()),
        device=device,
        cache=cache_folder(cache),
        report=output.say,
    )
    output.result(found.to_dict(), show=lambda: show_plan(output, found))


def show_plan(output: Output, found: "RunPlan") -> None:
    """Show a plan as tables, and whether the run fits."""
    output.say()
    stacks = list(found.costs.parameters)
    output.table(["parameters", *stacks, "total"], _parameter_rows(found))
    output.say()
    output.table(["for a token", "FLOPs"], _operation_rows(found))
    output.say()
    output.table(["memory", "", "at the peak"], _memory_rows(found))
    output.say(_describe_fit(found))
    output.say()
    output.table(["disk", ""], _disk_rows(found))
    output.say()
    output.say(_describe_time(found.time) if found.time else "not timed, as it does not fit")
    for choice in found.choices:
        output.say(f"{choice.key} = auto is {choice.value}: {choice.reason}")


def _parameter_rows(found: "RunPlan") -> Iterator[Row]:
    counts = found.costs.parameters
    for role in dict.fromkeys(role for roles in counts.values() for role in roles):
        row = [roles.get(role) for roles in counts.values()]
        yield role, *row, sum(filter(None, row))
    sums = [sum(roles.values()) for roles in counts.values()]
    yield "total", *sums, sum(sums)


def _operation_rows(found: "RunPlan") -> Iterator[Row]:
    operations = found.costs.operations
    yield "forward", _scaled(operations.forward, _FLOPS, 1000)
    yield "backward", _scaled(operations.backward, _FLOPS, 1000)
    yield "of both, attention", _scaled(operations.attention, _FLOPS, 1000)


def _memory_rows(found: "RunPlan") -> Iterator[Row]:
    memory = found.costs.memory
    kinds = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "average": memory.average,
        "activations": memory.activations,
    }
    for kind, size in kinds.items():
        yield kind, _size(size), _size(memory.at_peak.get(kind, 0))
    for kind, size in (("objects", memory.objects), ("process", memory.process)):
        yield kind, _size(size), _size(size)
    yield "total", None, _size(memory.peak)


def _disk_rows(found: "RunPlan") -> Iterator[Row]:
    disk = found.disk
    yield "a checkpoint", _size(disk.checkpoint)
    yield "the bundle", _size(disk.bundle)
    yield f"with up to {disk.num_checkpoints} checkpoints", _size(disk.most)


def _describe_fit(found: "RunPlan") -> str:
    largest, memory = found.largest, found.costs.memory
    when = "both passes" if memory.moment == "passes" else "the step of the weights"
    fits = "fits in" if found.fits else "does not fit in"
    return (
        f"the peak is in {when}, on {largest['sentences']} sentences of up to {largest['source_length']} and "
        f"{largest['target_length']} tokens in {found.precision}; it {fits} the {_size(found.device_bytes)} of "
        f"{found.device}"
    )


def _describe_time(time: "TimePlan") -> str:
    hours, rest = divmod(round(time.seconds), 3600)
    return (
        f"an update takes {time.update_seconds:.3g} s, {time.tokens_per_second:,.0f} target tokens/s; "
        f"{time.updates:,} updates take {hours}:{rest // 60:02}:{rest % 60:02}, without validations and saving"
    )


def _size(size: float) -> str:
    return _scaled(size, _UNITS, 1024)


def _scaled(value: float, units: tuple[str, ...], step: int) -> str:
    """Return a number in the largest unit of which it has at least one."""
    power = 0
    while value >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    return f"{value:.3g} {units[power]}".rstrip()
