"""Verbs `prepare` and `train`."""

from pathlib import Path
from typing import Annotated

import typer

from deepnet.cli.options import (
    Cache,
    Device,
    Json,
    Overrides,
    RecipePath,
    TrustCode,
    cache_folder,
    examples,
)
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

PREPARE_EXAMPLES = examples(
    "deepnet prepare multi30k_de_en",
    "deepnet prepare mine.toml tokenizer.vocab_size=4000 --cache /data/deepnet",
)
TRAIN_EXAMPLES = examples(
    "deepnet train own_files data.train_source=mine.de data.train_target=mine.en --out runs/mine",
    "deepnet train mine.toml --out runs/mine",
    "deepnet train mine.toml scheme.name=branchnorm optimizer.lr=1e-3 --out runs/branchnorm",
    "deepnet train mine.toml --dry-run",
    "deepnet train runs/mine --out runs/mine --resume         # go on where it stopped",
    "deepnet train runs/mine training.seed=2 --out runs/seed2 # the same again, another seed",
    "deepnet train new.toml --from runs/mine --out runs/tuned # fine-tune",
    "torchrun --nproc-per-node 4 -m deepnet train mine.toml --out runs/mine",
)


def prepare(
    recipe: RecipePath,
    overrides: Overrides = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that prepare; their number changes no byte."),
    ] = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Clean, split and tokenise the text of a recipe, in one process per core.

    Says how many pairs were left out, and why. Text that was prepared before under the same settings is found again;
    `deepnet train` prepares by itself, so this verb is for looking first, or for machines without a GPU.
    """
    from deepnet.pipeline.preparing import prepare_data
    from deepnet.pipeline.recipe import load_recipe

    output = Output(as_json=as_json)
    loaded = load_recipe(recipe, overrides or ())
    data = prepare_data(loaded, cache=cache_folder(cache), report=output.say, processes=processes)
    found = {"folder": str(data.folder), "cached": data.cached, **data.summary}
    output.result(found, show=lambda: output.say(f"\nprepared data: {data.folder}"))


def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Folder to write the run to; needed to train."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="BUNDLE", help="Start from the weights of a run or bundle."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be trained, after one forward and backward."
        ),
    ] = False,
    device: Device = "auto",
    cache: Cache = None,
    trust_code: TrustCode = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write RUN/tensorboard (needs the extra).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a recipe: text in, a scored model out.

    Prepares the text, trains, writes the run folder with checkpoints and the finished model, translates the test part
    and scores it. Ctrl-C saves a checkpoint and stops; --resume goes on exactly there.
    """
    from deepnet.cli.reports import describe_run, show_run
    from deepnet.pipeline.entry import train as run_training

    output = Output(as_json=as_json)
    if dry_run:
        without = {
            "--resume": resume,
            "--from": start_from,
            "--trust-code": trust_code,
            "--tensorboard": tensorboard,
        }
        _refuse_with_dry_run([flag for flag, given in without.items() if given])
        _inspect(output, recipe, overrides or [], device, cache_folder(cache))
        return
    if out is None:
        raise ConfigError("--out is missing; name the folder to write the run to: --out runs/NAME")
    run = run_training(
        recipe,
        out=out,
        overrides=overrides or (),
        resume=resume,
        start_from=start_from,
        device=device,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        tensorboard=tensorboard,
        console=output.console,
    )
    output.result(describe_run(run), show=lambda: show_run(output, run))


def _inspect(output: Output, recipe: Path, overrides: list[str], device: str, cache: Path) -> None:
    from deepnet.cli.reports import show_inspection
    from deepnet.pipeline.inspecting import inspect_recipe
    from deepnet.pipeline.recipe import load_recipe

    found = inspect_recipe(
        load_recipe(recipe, overrides), device=device, cache=cache, report=output.say
    )
    output.result(found.to_dict(), show=lambda: show_inspection(output, found))


def _refuse_with_dry_run(flags: list[str]) -> None:
    if flags:
        raise ConfigError(
            f"--dry-run looks at a fresh run and writes none; leave out {' and '.join(flags)}"
        )
