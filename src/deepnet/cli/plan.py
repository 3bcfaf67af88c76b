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
from deepnet.planning.wording import in_bytes, in_thousands

if TYPE_CHECKING:
    from deepnet.pipeline.plan_run import RunPlan, TimePlan

PLAN_EXAMPLES = examples(
    "deepnet plan demo",
    "deepnet plan mine.toml model.encoder_layers=500 model.decoder_layers=500",
    "deepnet plan mine.toml training.recompute=true batching.max_tokens=2048 --json",
)
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
    time by timing a few layers. `deepnet train` refuses what this says does not fit.
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
    output.say(_describe_time(found.time) if found.time else f"not timed: {found.untimed}")
    for choice in found.choices:
        output.say(f"{choice.key} = {choice.asked} is {choice.value}: {choice.reason}")


def _parameter_rows(found: "RunPlan") -> Iterator[Row]:
    counts = found.costs.parameters
    for role in dict.fromkeys(role for roles in counts.values() for role in roles):
        row = [roles.get(role) for roles in counts.values()]
        yield role, *row, sum(filter(None, row))
    sums = [sum(roles.values()) for roles in counts.values()]
    yield "total", *sums, sum(sums)


def _operation_rows(found: "RunPlan") -> Iterator[Row]:
    operations = found.costs.operations
    yield "forward", in_thousands(operations.forward)
    yield "backward", in_thousands(operations.backward)
    yield "of both, attention", in_thousands(operations.attention)


def _memory_rows(found: "RunPlan") -> Iterator[Row]:
    memory = found.costs.memory
    always = {"objects": memory.objects, "heap": memory.heap, "process": memory.process}
    for kind, size in memory.kinds().items():
        yield kind, in_bytes(size), in_bytes({**always, **memory.at_peak}.get(kind, 0))
    yield "total", None, in_bytes(memory.peak)


def _disk_rows(found: "RunPlan") -> Iterator[Row]:
    disk = found.disk
    yield "a checkpoint", in_bytes(disk.checkpoint)
    yield "the bundle", in_bytes(disk.bundle)
    yield f"with up to {disk.num_checkpoints} checkpoints", in_bytes(disk.most)


def _describe_fit(found: "RunPlan") -> str:
    largest, memory = found.largest, found.costs.memory
    when = "both passes" if memory.moment == "passes" else "the step of the weights"
    fits = "is tight in" if found.is_tight else "fits in" if found.fits else "does not fit in"
    return (
        f"the peak is in {when}, on {largest['sentences']} sentences of up to {largest['source_length']} and "
        f"{largest['target_length']} tokens in {found.precision}; it {fits} the {in_bytes(found.device_bytes)} of "
        f"{found.device}"
    )


def _describe_time(time: "TimePlan") -> str:
    hours, rest = divmod(round(time.seconds), 3600)
    return (
        f"an update takes {time.update_seconds:.3g} s, {time.tokens_per_second:,.0f} target tokens/s; "
        f"{time.updates:,} updates take {hours}:{rest // 60:02}:{rest % 60:02}, without validations and saving"
    )
