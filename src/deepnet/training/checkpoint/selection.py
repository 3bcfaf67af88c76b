"""Which weights a finished run hands on: its best checkpoint's, or the average of its latest ones."""

from pathlib import Path

from torch import Tensor

from deepnet.bundle import read_tensors
from deepnet.errors import CheckpointError
from deepnet.training.checkpoint.folder import (
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    read_header,
)
from deepnet.training.optimization.averaging import average_tensors


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Return a checkpoint's model, with the moving average in place of the parameters where the run kept one."""
    weights = read_tensors(checkpoint / "model.safetensors")
    average = checkpoint / "ema.safetensors"
    return {**weights, **read_tensors(average)} if average.exists() else weights


def select_checkpoints(folder: Path, *, average_last: int) -> list[Path]:
    """Return the latest `average_last` checkpoints, or for 0 the best one, the latest where nothing was validated.

    Where the run has fewer, all of them: the caller says so or refuses. One that an interruption made counts only where
    it is all that is asked for, or there.
    Raises CheckpointError when the folder has none.
    """
    checkpoints, latest = list_checkpoints(folder), latest_checkpoint(folder)
    if not latest:
        raise CheckpointError(f"{folder} holds no checkpoint; train first")
    if average_last == 1 or not checkpoints:
        return [latest]
    if average_last:
        trained = [path for path in checkpoints if path != checkpoint_path(folder, step=0)]
        return trained[-average_last:] or checkpoints
    best_step = read_header(checkpoints[-1])["state"].best_step
    return [checkpoints[-1] if best_step is None else checkpoint_path(folder, step=best_step)]


def selected_weights(checkpoints: list[Path]) -> dict[str, Tensor]:
    """Return the average of the weights of some checkpoints, in their own type."""
    return average_tensors([read_weights(path) for path in checkpoints])
