"""What torch.compile makes of each scheme's blocks, and what it and the guard's listening cost.

    python benchmarks/compile.py
    python benchmarks/compile.py --schemes --timing

The first command trains a model of every scheme (4 + 4 layers, d 32, dropout 0.1, the guard as it is by default) for
one update of each of 12 sentence lengths, blocks compiled, and counts graphs, breaks and recompiles; then three updates
without dropout, compiled and not, whose losses it compares. The second one times updates of 12 + 12 layers, d 96,
compiled by torch's default backend and not, each with and without the guard's listening, alternated round by round in
one process. Both write compile.json and table.md into --out, and leave there what the other wrote.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

from deepnet.probes.norm_input import NormInputs
from deepnet.record import RunFolder, read_jsonl, write_json
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.training import loop
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine.compile import compiled
from deepnet.transformer.models import Transformer, TransformerConfig
from measuring import commit, device, ratios, spread, versions
from theory_workload import interval, markdown, number

IDS = 1000
LENGTHS = (7, 5, 10, 15, 16, 20, 25, 31, 32, 40, 48, 60)
SMALL = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 32, "ffn_dim": 64, "num_heads": 2}
TIMED = {"encoder_layers": 12, "decoder_layers": 12, "d_model": 96, "ffn_dim": 256, "num_heads": 4}
TIMED_SCHEME, TIMED_SHAPE, WARM_UP, UPDATES = "deepnorm", (32, 31), 1, 5
"""Sentences and tokens of a batch; updates before and while the clock runs."""
VARIANTS = {
    "eager": ("off", True),
    "eager, nobody listens": ("off", False),
    "compiled": ("blocks", True),
    "compiled, nobody listens": ("blocks", False),
    "eager (again)": ("off", True),
}
PAIRS = (
    ("compiled over eager", "compiled", "eager"),
    ("listening, eager", "eager", "eager, nobody listens"),
    ("listening, compiled", "compiled", "compiled, nobody listens"),
    ("eager over itself", "eager (again)", "eager"),
)


# What is trained ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """Pairs of sentences, with padding."""

    source: Tensor
    keep: Tensor | None
    target: Tensor

    def to(self, device: torch.device) -> "Texts":
        """Return the batch, which stays where it is."""
        return self


def texts(sentences: int, length: int) -> Texts:
    """Draw pairs: targets of that length, sources one or two tokens longer and some of them padded."""
    draw = torch.Generator().manual_seed(length)
    shape = (sentences, length + 1 + length % 2)
    source, target = (
        torch.randint(2, IDS - 1, s, generator=draw) for s in (shape, (sentences, length))
    )
    keep = torch.ones_like(source, dtype=torch.bool)
    keep[1::2, -1] = False
    return Texts(source, keep, target)


def loss(model: Transformer, batch: Texts) -> Tensor:
    """Return the loss of the targets; of a model of one stack that of the source itself, whatever it sees of it."""
    if model.encoder is None:
        return summed_cross_entropy(model(batch.source, batch.keep), batch.source)
    return summed_cross_entropy(model(batch.source, batch.keep, batch.target), batch.target)


def make(scheme: str, shape: dict[str, Any], *, dropout: float) -> Transformer:
    torch.manual_seed(1)
    plan = load_scheme(scheme, {})
    if "encoder_decoder" not in plan.architectures:
        shape = shape | {"architecture": "decoder_only", "encoder_layers": 0}
    tying = "decoder" if scheme == "t_fixup" else "all"
    config = TransformerConfig(**shape, vocab_size=IDS, tie_embeddings=tying, dropout=dropout)
    return Transformer(config, plan)


def blocks_of(model: Transformer) -> list[nn.Module]:
    return [layer for stack in model.stacks() for layer in stack.layers]


def kinds_of(model: Transformer) -> int:
    """Return how many different blocks there are: by the modules and parameters that they are made of."""
    return len(
        {
            (str(block), *((name, p.shape) for name, p in block.named_parameters()))
            for block in blocks_of(model)
        }
    )


def train(
    model: Transformer,
    batches: Sequence[Texts],
    *,
    choice: str,
    after: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train one update per batch and return their losses; `after` is called after each."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", recipe={})
        loop.train_loop(
            model,
            loader=ListedUpdates(
                [ListedUpdate((batch,), batch.target.numel()) for batch in batches]
            ),
            loss=loss,
            run=run,
            training=TrainingConfig(
                max_steps=len(batches),
                log_every=1,
                save_every=0,
                precision="fp32",
                compile=choice,
            ),
            optimizer=OptimizerConfig(lr=1e-3),
            schedule=ScheduleConfig(name="constant", warmup_steps=0),
            blocks=blocks_of(model),
            after_update=lambda *_: after() and None,
        )
        return [record["loss"] for record in read_jsonl(run.metrics_path)]


# What is counted ----------------------------------------------------------------------------------------------------


def count(scheme: str) -> dict[str, Any]:
    """Return the graphs, breaks and recompiles of a scheme's blocks, and how far compiled losses are from others."""
    torch._dynamo.reset()
    counters.clear()
    model, graphs = make(scheme, SMALL, dropout=0.1), []
    batches = [texts(4, length) for length in LENGTHS]
    unpadded = replace(batches[-1], keep=None)
    train(
        model,
        [*batches, unpadded],
        choice="blocks",
        after=lambda: graphs.append(counters["stats"]["unique_graphs"]),
    )
    return {
        "kinds": kinds_of(model),
        "graphs": graphs[0],
        "breaks": sum(counters["graph_break"].values()),
        "recompiles": graphs[-2] - graphs[0],
        "unpadded": graphs[-1] - graphs[-2],
        "loss_difference": loss_difference(scheme, batches[:3]),
    }


def loss_difference(scheme: str, batches: Sequence[Texts]) -> float:
    """Return the largest relative difference between compiled and other losses, without dropout."""
    losses = [
        train(make(scheme, SMALL, dropout=0.0), batches, choice=choice)
        for choice in ("off", "blocks")
    ]
    return max(abs(a - b) / a for a, b in zip(*losses, strict=True))


# What is timed ------------------------------------------------------------------------------------------------------


@contextmanager
def listening(listens: bool) -> Iterator[None]:
    """Let the guard hear what enters the norms meanwhile, or nothing."""

    @contextmanager
    def deaf(self: NormInputs, device: object = None) -> Iterator[None]:
        yield

    def nothing(self: NormInputs, device: torch.device) -> Tensor:
        return torch.zeros(2 * len(self.places), dtype=torch.float64, device=device)

    with ExitStack() as stack:
        if not listens:
            stack.enter_context(mock.patch.multiple(NormInputs, open=deaf, take=nothing))
        yield


def cpu_seconds(variant: str) -> float:
    """Return the CPU time of an update of a variant, the first ones left out."""
    choice, listens = VARIANTS[variant]
    model, times = make(TIMED_SCHEME, TIMED, dropout=0.1), []
    batches = [texts(*TIMED_SHAPE)] * (WARM_UP + UPDATES)
    with listening(listens):
        train(model, batches, choice=choice, after=lambda: times.append(time.process_time()))
    return (times[-1] - times[WARM_UP - 1]) / UPDATES


def run_rounds(rounds: int) -> dict[str, list[float]]:
    """Compile, then alternate; every second round runs backwards."""
    torch._dynamo.reset()
    for name in VARIANTS:
        cpu_seconds(name)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for index in range(rounds):
        for name in list(VARIANTS)[:: 1 if index % 2 == 0 else -1]:
            seconds[name].append(cpu_seconds(name))
            print(f"round {index + 1}: {name} {seconds[name][-1]:.4f} s", flush=True)
    return seconds


def timed(rounds: int) -> dict[str, Any]:
    """Return CPU seconds per update of each variant, and the ratios of those that are compared."""
    seconds = run_rounds(rounds)
    return {
        "environment": environment(),
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "ratios": {name: ratios(seconds[a], seconds[b]) for name, a, b in PAIRS},
    }


# What is written ----------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    return {"device": device(), "commit": commit(), "versions": versions()}


def render(found: dict[str, Any]) -> str:
    """Return table.md."""
    parts = [
        "# Blocks compiled",
        "    python benchmarks/compile.py\n    python benchmarks/compile.py --schemes --timing",
    ]
    if counted := found.get("counted"):
        parts += [_counted(counted)]
    if measured := found.get("timed"):
        parts += [_timed(measured)]
    return "\n\n".join(parts) + "\n"


def _counted(counted: dict[str, Any]) -> str:
    header = [
        "scheme",
        "kinds of block",
        "graphs",
        "breaks",
        "recompiles",
        "without padding",
        "losses differ by",
    ]
    keys = ("kinds", "graphs", "breaks", "recompiles", "unpadded")
    rows = [
        [name, *(str(row[key]) for key in keys), number(row["loss_difference"])]
        for name, row in sorted(counted.items())
    ]
    lengths = ", ".join(map(str, LENGTHS))
    how = (
        "4 + 4 layers, or 4 where a scheme is for decoders alone, d 32. Graphs: those of the first update, forward and "
        f"backward pass together. Recompiles: those of the next 11; the 12 have {lengths} tokens. Without padding: the "
        "graphs that a batch adds which needs no mask. Blocks are of a kind where modules and parameters are alike. "
        "Losses: relatively, the most of three updates without dropout."
    )
    return f"{how}\n\n{markdown(header, rows)}"


def _timed(measured: dict[str, Any]) -> str:
    rows = [[name, interval(values)] for name, values in measured["seconds"].items()]
    seconds = markdown(["update", "CPU seconds"], rows)
    pairs = markdown(["", "ratio"], [[name, interval(v)] for name, v in measured["ratios"].items()])
    sentences, length = TIMED_SHAPE
    how = (
        f"{TIMED_SCHEME}, 12 + 12 layers, d 96, {sentences} pairs of {length} + {length + 2} tokens, one thread; CPU "
        f"time of {UPDATES} updates a round, median [lowest, highest] of the rounds; ratios pair the same round."
    )
    return f"{how}\n\n{seconds}\n\n{pairs}\n\n{measured['environment']['device']}."


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schemes", nargs="*", default=list_schemes(), help="those to count")
    parser.add_argument("--backend", default="aot_eager", help="torch's backend for counting")
    parser.add_argument("--timing", action="store_true", help="time updates, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/compile"))
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "compile.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    fast = partial(compiled, backend=options.backend)
    for scheme in options.schemes:
        with mock.patch.object(loop, "compiled", fast):
            row = count(scheme) | {"backend": options.backend, "environment": environment()}
        found.setdefault("counted", {})[scheme] = row
        print(scheme, row, flush=True)
        write(options.out, found)
    if options.timing:
        found["timed"] = timed(options.rounds)
        write(options.out, found)


def write(out: Path, found: dict[str, Any]) -> None:
    write_json(out / "compile.json", found)
    (out / "table.md").write_text(render(found), encoding="utf-8")


if __name__ == "__main__":
    main()
