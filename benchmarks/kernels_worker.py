"""What one state of the code is asked by kernels.py, in a process of its own.

    python kernels_worker.py count
    python kernels_worker.py 6L-6L-d512 rotary 22 fp32

The first prints how many kernels a layer pair runs. The second builds a model, says when it is ready, and answers
each number n that it reads with what an update took, on average of n.

A kernel is an operator that torch's dispatcher hands to a device and that computes or copies numbers. Views launch
nothing, nor do allocations: they are left out. What an operator does inside, such as the copy of the bias that addmm
begins with, is a part of it. A pair is an encoder layer and a decoder layer: what a model of 3 + 3 layers runs beyond
one of 2 + 2, in training, with dropout on the branches and padding in the source.
"""

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig
from training_worker import make_step
from workload import DROPOUT, SIZES, VOCAB_SIZE, Size, make_batch

SCHEMES, POSITIONS, LENGTHS = ("deepnorm", "pre_ln"), ("sinusoidal", "rotary"), (22, 44)
"""What is counted. Up to 32 keys attention is three products on a CPU, beyond that torch's kernel."""
TARGET_IS_SHORTER_BY = 2
ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view"))
TOKENS = 704
"""Of the source and of the target, padding included, in an update that is timed."""


class Kernels(TorchDispatchMode):
    """Counts the kernels that run under it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count one call."""
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in ALLOCATIONS:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


def build(size: Size, scheme: str, positions: str) -> nn.Module:
    torch.manual_seed(1)
    config = TransformerConfig(
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        d_model=size.d_model,
        ffn_dim=size.ffn_dim,
        num_heads=size.num_heads,
        vocab_size=VOCAB_SIZE + 1,
        positions=positions,
        dropout=DROPOUT,
    )
    return Transformer(config, load_scheme(scheme, {})).train()


def kernels(scheme: str, positions: str, length: int) -> dict[str, Counter[str]]:
    """Return the kernels of a layer pair in the forward and in the backward pass, by name."""
    small, large = (_of_model(layers, scheme, positions, length) for layers in (2, 3))
    return {name: large[name] - small[name] for name in ("forward", "backward")}


def _of_model(layers: int, scheme: str, positions: str, length: int) -> dict[str, Counter[str]]:
    size = Size("", layers, 32, 64, 2, sentences=4, length=length)
    model, batch = build(size, scheme, positions), make_batch(size, VOCAB_SIZE)
    with Kernels() as forward:
        logits = model(batch.source, batch.source_keep, batch.target_in[:, :-TARGET_IS_SHORTER_BY])
        total = logits.sum()
    with Kernels() as backward:
        total.backward()
    return {"forward": forward.names, "backward": backward.names}


def count() -> list[dict[str, Any]]:
    """Return one row per scheme, positions and length of the code that is imported."""
    return [
        {"scheme": scheme, "positions": positions, "length": length}
        | {name: found.total() for name, found in kernels(scheme, positions, length).items()}
        for scheme in SCHEMES
        for positions in POSITIONS
        for length in LENGTHS
    ]


def serve(name: str, positions: str, length: str, precision: str) -> None:
    """Build a cell's model, say so, and answer each number n read with what a step took, on average of n."""
    torch.set_num_threads(1)
    size = replace(SIZES[name], sentences=TOKENS // int(length), length=int(length))
    step = make_step(build(size, "deepnorm", positions), make_batch(size, VOCAB_SIZE), precision)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_taken(step, int(line))), flush=True)


def _taken(step: Callable[[], None], steps: int) -> dict[str, float]:
    with suppress(OSError):  # where it may not be set back, the peak is that of the process
        Path("/proc/self/clear_refs").write_text("5")
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"wall_seconds": wall / steps, "cpu_seconds": cpu / steps, "peak_bytes": _peak()}


def _peak() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * (found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    if sys.argv[1] == "count":
        print(json.dumps(count()))
    else:
        serve(*sys.argv[1:])


if __name__ == "__main__":
    main()
