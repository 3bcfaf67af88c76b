"""One model in a process of its own, which takes steps when the parent says so.

    python training_worker.py PEER SIZE --precision bf16 --device cuda --compile layers

Prints one JSON line when it is ready, then one per line read: a number n is answered by the seconds
that n training steps took. Peak memory is the kernel's high-water mark of this process (VmHWM), on a
card the most that its tensors took at once.
"""

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from workload import SIZES, Batch, make_batch, model_flops

ENGINE = "deepnet.training.engine.compile"
"""What compiles the layers of ours in training."""


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel states no VmHWM; peak memory is measured on Linux only")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of any model: what its outermost lists of modules hold."""
    for child in module.children():
        if not isinstance(module, nn.ModuleList) or isinstance(child, nn.ModuleList):
            yield from layers(child)
        else:
            yield child


def compiled(model: nn.Module, what: str, *, ours: bool) -> AbstractContextManager[object]:
    """Compile nothing ("eager"), every layer by itself ("layers"), or the whole ("model"), in a context."""
    if what == "layers" and ours:
        return importlib.import_module(ENGINE).compiled(list(layers(model)))
    for module in {"eager": [], "layers": layers(model), "model": [model]}[what]:
        # module.compile() would leave the layers of torch.nn as they are: dynamo skips their files
        module.forward = torch.compile(module.forward, dynamic=True if ours else None)
    return nullcontext()


def make_step(model: nn.Module, batch: Batch, precision: str) -> Callable[[], None]:
    """A whole update: forward, label-smoothed loss per target token, backward, fused AdamW."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )

    def step() -> None:
        with autocast(precision, batch.source.device):
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


def timed(step: Callable[[], None], count: int, device: torch.device) -> float:
    """Seconds of `count` steps, until the device has done them."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("peer")
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--compile", choices=["eager", "layers", "model"], required=True)
    return parser.parse_args()


def main() -> None:
    options = parse()
    device, size = options.device, SIZES[options.size]
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    module = importlib.import_module(f"peers.{options.peer}")
    imports_bytes = peak_bytes(device)
    with device:  # weights of billions are drawn there within seconds
        model = module.build(size).train()
    batch = make_batch(size, module.PAD)
    step = make_step(model.to(device), batch.to(device), options.precision)
    lengths = ((side != batch.pad).sum(1) for side in (batch.source, batch.target_out))
    answer(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        num_tokens=batch.num_tokens,
        imports_bytes=imports_bytes,
        model_flops=model_flops(size, *lengths),
        card=torch.cuda.get_device_name(device) if device.type == "cuda" else "",
    )
    with compiled(model, options.compile, ours=options.peer.startswith("ours")):
        for line in sys.stdin:
            answer(seconds=timed(step, int(line), device), peak_bytes=peak_bytes(device))


if __name__ == "__main__":
    main()
