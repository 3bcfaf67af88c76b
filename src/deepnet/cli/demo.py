"""Verb `demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Cache, Json, cache_folder, examples
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.pipeline.demo import DemoResult

DEMO_EXAMPLES = examples(
    "deepnet demo",
    "deepnet demo --out runs/second --seed 2",
)


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the two runs go.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of both models.")] = 1,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Train a 36-layer translator in minutes, and see what the same model does without DeepNorm.

    German to English on built-in sentences, 18 encoder and 18 decoder layers, on the CPU. A Post-LN model goes first,
    for a tenth of the updates; then the DeepNorm model, with both curves side by side. Run again after an interruption,
    it goes on where it stopped.
    """
    from deepnet.pipeline.demo import run_demo

    output = Output(as_json=as_json)
    found = run_demo(out, seed=seed, cache=cache_folder(cache), console=output.console)
    output.result(
        {
            "folder": str(found.folder),
            "picture": str(found.picture),
            "models": found.rows,
            "same_step": found.same_step,
            "samples": found.samples,
        },
        show=lambda: _show(output, found),
    )


def _show(output: Output, found: "DemoResult") -> None:
    output.say()
    columns = ("model", "updates", "validation_loss", "bleu", "chrf", "ended")
    output.table(
        [name.replace("_", " ") for name in columns],
        [[row[name] for name in columns] for row in found.rows],
    )
    signature = next((row["signature"] for row in found.rows if row["signature"]), None)
    output.say(f"BLEU on 2,000 test sentences, signature {signature}")
    if found.same_step:
        step, post_ln, deepnorm = (found.same_step[k] for k in ("step", "post_ln", "deepnorm"))
        output.say(
            f"At update {step:,} the validation loss was {post_ln:.2f} under Post-LN and "
            f"{deepnorm:.2f} under DeepNorm."
        )
    for source, reference, translation in found.samples:
        output.say(f"\n  German     {source}\n  reference  {reference}\n  DeepNorm   {translation}")
    model = found.folder / "deepnorm"
    output.say(f"\nThe curves: {found.picture}\nThe model:  {model / 'bundle'}\n\nNext:")
    output.say(f'  echo "Guten Morgen, wie geht es dir?" | deepnet translate {model}')
    output.say(f"  deepnet evaluate {model}")
    output.say("  deepnet train --help         # your own two files: docs/tutorial.md")
