"""Compilation by torch.compile, block by block, put around the blocks of a model from outside.

Blocks that are alike share a graph, so that the time it takes does not grow with depth; a model that is compiled as a
whole is one graph per layer long. What is compiled is a block's forward alone: hooks on the block itself, such as those
of torch's FSDP2, run around it.
"""

import importlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from deepnet.errors import ConfigError, DeepNetError
from deepnet.training.config import CompileName
from deepnet.training.engine.forwards import Forward, replaced_forwards

_MOST_GRAPHS = 64
"""Graphs of all blocks together, after which torch warns and runs a block that fits none of them as it is written."""


def resolve_compile(name: CompileName, *, device: torch.device, has_blocks: bool) -> bool:
    """Return whether blocks run compiled on a device; raises ConfigError where they are to, and it has no compiler."""
    if name == "off" or not has_blocks:
        return False
    if lacking := _lacking(device):
        raise ConfigError(
            f"training.compile = 'blocks' needs {lacking}, and there is none; install it, or set "
            "training.compile = 'off'"
        )
    return True


@contextmanager
def compiled(blocks: Iterable[nn.Module], *, backend: str | Forward = "inductor") -> Iterator[None]:
    """Run each block as compiled code where it trains, for the length of the context.

    In evaluation mode and without gradients (validation, search, probes) a block runs as it is written. Raises
    DeepNetError where torch cannot compile one.
    """
    # not imported above: it takes as long to import as the rest of torch
    dynamo = importlib.import_module("torch._dynamo")
    settings = dynamo.config.patch(
        recompile_limit=_MOST_GRAPHS,
        specialize_float=True,  # else each rate and factor is a tensor, made anew for every call
        optimize_ddp=False,  # it would cut a block's graph where one of DDP's buckets is full
    )
    # else a backward pass is compiled when it is first run, and what goes wrong there is another error
    whole = importlib.import_module("torch._functorch.config").patch(
        force_non_lazy_backward_lowering=True
    )
    # else a graph of sentences that are as long as their translations would be of no use for others
    shapes = importlib.import_module("torch.fx.experimental._config").patch(use_duck_shape=False)
    with settings, shapes, whole, replaced_forwards(blocks, partial(_compile, backend)):
        try:
            yield
        except dynamo.exc.BackendCompilerFailed as error:
            raise DeepNetError(
                f"torch cannot compile a block of this model: {_reason(error.inner_exception)}; set training.compile "
                "= 'off', and resume"
            ) from error


def eager(*, compiles: bool) -> AbstractContextManager[object]:
    """Run compiled blocks as they are written meanwhile: only so does a hook that is new reach their modules."""
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def _compile(backend: str | Forward, block: nn.Module, forward: Forward) -> Forward:
    fast = torch.compile(forward, backend=backend, dynamic=True)
    return partial(_run, block, forward, fast)


def _run(block: nn.Module, forward: Forward, fast: Forward, *args: Any, **kwargs: Any) -> Any:
    trains = block.training and torch.is_grad_enabled()
    return (fast if trains else forward)(*args, **kwargs)


def _lacking(device: torch.device) -> str:
    """Return what torch would need to compile for a device, where that is not there."""
    if device.type == "cuda":
        if not importlib.import_module("torch.utils._triton").has_triton():
            return "Triton and a GPU that it knows (compute capability 7.0 or later)"
        found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        return "" if found else "a C compiler for Triton (gcc, clang or the one that CC names)"
    if device.type != "cpu":
        return f"a CUDA device or a CPU, not '{device.type}'"
    try:
        importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    except RuntimeError:
        return "a C++ compiler (g++ or the one that CXX names)"
    return ""


def _reason(error: Exception) -> str:
    """Return the line that says what went wrong, of what may be all the output of a compiler."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if "error:" in line), lines[0])
