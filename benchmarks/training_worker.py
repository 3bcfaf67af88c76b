"""One model in a process of its own, which takes steps when the parent says so.

    python training_worker.py PEER SIZE PRECISION THREADS

Prints one JSON line when it is ready, then one per line read: a number n is answered by the seconds
that n training steps took. Peak memory is the kernel's high-water mark of this process (VmHWM).
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from workload import SIZES, Batch, make_batch


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel states no VmHWM; peak memory is measured on Linux only")


def autocast(precision: str) -> AbstractContextManager[object]:
    if precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext()


def make_step(model: nn.Module, batch: Batch, precision: str) -> Callable[[], None]:
    """A whole update: forward, label-smoothed loss per target token, backward, fused AdamW."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )

    def step() -> None:
        with autocast(precision):
            logits = model(batch.source, batch.source_keep, batch.target_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.target_out.flatten(),
                ignore_index=batch.pad,
                label_smoothing=0.1,
                reduction="sum",
            )
        (loss / batch.num_target_tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    peer, size_name, precision, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    size = SIZES[size_name]
    module = importlib.import_module(f"peers.{peer}")
    imports_bytes = peak_bytes()
    model = module.build(size).train()
    batch = make_batch(size, module.PAD)
    step = make_step(model, batch, precision)
    answer(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        num_tokens=batch.num_tokens,
        imports_bytes=imports_bytes,
    )
    for line in sys.stdin:
        answer(seconds=timed(step, int(line)), peak_bytes=peak_bytes())


if __name__ == "__main__":
    main()
