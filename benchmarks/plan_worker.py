"""One point of the planning benchmark in a process of its own: the plan of it, or the run itself.

    python plan_worker.py planned POINT [--times]
    python plan_worker.py trained POINT --updates N

POINT is JSON. Prints one line of JSON: bytes above the imports, and seconds of an update.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnet.data.objectives import Batch
from deepnet.planning.costs import find_costs
from deepnet.planning.machine import most_held_bytes
from deepnet.planning.process import process_bytes
from deepnet.planning.rehearsal import Conditions
from deepnet.planning.timing import Depths, time_updates
from deepnet.record import RunFolder, read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.loop import train_loop
from deepnet.training.loss import token_loss
from deepnet.transformer.models import Transformer, TransformerConfig
from plan import Point

VOCAB_SIZE, SENTENCES, SOURCE_LENGTH, TARGET_LENGTH = 4000, 32, 31, 33


def batch() -> Any:
    source, target = (
        torch.randint(2, VOCAB_SIZE - 1, (SENTENCES, length))
        for length in (SOURCE_LENGTH, TARGET_LENGTH)
    )
    keep = torch.arange(SOURCE_LENGTH) < torch.randint(
        SOURCE_LENGTH - 8, SOURCE_LENGTH + 1, (SENTENCES, 1)
    )
    return Batch(source, keep, target, target, target.numel(), int(keep.sum()))


def build(depths: tuple[int, int], point: Point) -> Any:
    config = TransformerConfig(
        encoder_layers=depths[0],
        decoder_layers=depths[1],
        d_model=point.d_model,
        ffn_dim=2 * point.d_model,
        num_heads=point.d_model // 32,
        vocab_size=VOCAB_SIZE,
    )
    return Transformer(config, load_scheme("deepnorm"))


def sections(point: Point) -> tuple[Any, Any]:
    training = TrainingConfig(
        max_steps=1,
        recompute=point.recompute,
        recompute_segment=point.segment,
        step_in_backward=point.in_backward,
        ema_decay=0.999 if point.ema else 0.0,
        log_every=1,
    )
    return training, OptimizerConfig(name=point.optimizer, lr=1e-4)


def conditions(point: Point) -> Conditions:
    training, optimizer = sections(point)
    return Conditions(
        training=training,
        optimizer=optimizer,
        precision=Precision("fp32", "cpu"),
        device=torch.device("cpu"),
        accumulates=False,
    )


def planned(point: Point, *, times: bool) -> dict[str, float]:
    depths, one = Depths(point.depth, point.depth), batch()
    memory = find_costs(partial(build, depths, point), [one], conditions=conditions(point)).memory
    found = {"peak": memory.peak, "needed": memory.needed, **memory.at_peak}
    if times:
        seconds = time_updates(
            partial(build, point=point), depths, one, conditions=conditions(point)
        )
        found["seconds"] = sum(seconds)
    return found


def trained(point: Point, *, updates: int) -> dict[str, float]:
    one = batch()
    training, optimizer = sections(point)
    before = process_bytes(conditions(point))
    model = build((point.depth, point.depth), point)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", recipe={})
        train_loop(
            model,
            loader=ListedUpdates([ListedUpdate((one,), one.num_tokens)]),
            loss=token_loss(label_smoothing=0.1),
            run=run,
            training=training.model_copy(update={"max_steps": updates}),
            optimizer=optimizer,
            schedule=ScheduleConfig(name="constant", warmup_steps=0),
            blocks=[layer for stack in model.stacks() for layer in stack.layers],
        )
        rows = read_jsonl(run.metrics_path)
    seconds = rows[-1]["seconds"] - rows[-2]["seconds"]
    return {"peak": most_held_bytes(torch.device("cpu")) - before, "seconds": seconds}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=["planned", "trained"])
    parser.add_argument("point", type=lambda text: Point(**json.loads(text)))
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--updates", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.task == "planned":
        print(json.dumps(planned(options.point, times=options.times)))
    else:
        print(json.dumps(trained(options.point, updates=options.updates)))


if __name__ == "__main__":
    main()
