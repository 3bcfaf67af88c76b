"""The device that a run, a translation or a measurement is on."""

import os

import torch

from deepnet.errors import ConfigError
from deepnet.training.engine.ranks import started_processes


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the first GPU where there is one, else the CPU.

    Raises ConfigError where it cannot be used, or names one GPU for all the processes of torchrun.
    """
    if name.startswith("cuda:") and started_processes() > 1:
        raise ConfigError(
            f"the device '{name}' is one GPU, but torchrun started {started_processes()} processes, each of which "
            "takes a GPU of its own; give 'cuda', and choose the GPUs with CUDA_VISIBLE_DEVICES"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device '{name}' cannot be used: {error}") from error
