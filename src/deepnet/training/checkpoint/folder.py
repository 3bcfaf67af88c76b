"""Checkpoints: one folder per step, written whole or not at all, in safetensors and JSON.

step_00000300/  model.safetensors, optimizer.safetensors, ema.safetensors (with an EMA), guard.safetensors, state.json,
                SHA256SUMS (the checksum of each of them; checkpoints of earlier versions have none)
interrupted_00000310/  the same, where an interruption came; it is gone when the next one is saved

state.json holds the format version, the counters, the scaler, the plain numbers of the optimiser and of the guard, and
the run's settings; guard.safetensors the last updates as the guard saw them.
No random state is saved: the loop seeds every micro-batch from the recipe's seed and the step.
"""

import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnet.bundle import load_model_tensors, model_tensors, read_tensors, write_tensors
from deepnet.config import build
from deepnet.errors import CheckpointError, ConfigError, DeepNetError, DivergenceError
from deepnet.record import atomic_folder, write_json
from deepnet.seal import find_damage, read_json, seal_folder, unseal_folder
from deepnet.tensor_files import in_file_order
from deepnet.training.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from deepnet.training.checkpoint.resume import check_resumable
from deepnet.training.engine.base import Engine
from deepnet.training.guard.judge import GuardMemory
from deepnet.training.state import TrainingState
from deepnet.training.trained import Trained

FORMAT_VERSION = 1
"""The version of the format of a checkpoint folder."""
_INTERRUPTED = "interrupted"
_UNLOADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What is raised where a file holds something else than was saved."""


def checkpoint_path(folder: Path, *, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return folder / f"step_{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first, without one that an interruption made."""
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that a resumed run goes on from; None where there is none."""
    # of the same step, the one of the interruption was there first
    found = [*sorted(_interruptions(folder), key=_step), *list_checkpoints(folder)]
    return max(reversed(found), key=_step, default=None)


def save_checkpoint(
    folder: Path, *, trained: Trained, settings: Mapping[str, Any], interrupted: bool = False
) -> Path:
    """Write the checkpoint of the current step; of one that is there only what is known besides the weights.

    Every rank calls it, and the writer writes. One that is written because the run was `interrupted` has a name of its
    own, so that no other run keeps, averages or goes back to others. Raises CheckpointError when the disk refuses, and
    DivergenceError when a weight is not finite; what was saved before stays, and nothing half-written does.
    """
    regular = checkpoint_path(folder, step=trained.state.step)
    path = folder / regular.name.replace("step", _INTERRUPTED) if interrupted else regular
    ranks = trained.engine.ranks
    _check_finite(trained)
    there = ranks.from_writer(lambda: next((one for one in (regular, path) if one.exists()), None))
    if not ranks.is_writer:
        if not there:
            _send(trained)
        return there or path
    try:
        if there:
            unseal_folder(there)
            _write_rest(there, trained, settings)
            return there
        with atomic_folder(path) as temporary:
            _write(temporary, trained)
            _write_rest(temporary, trained, settings)
    except (OSError, DeepNetError) as error:
        raise CheckpointError(
            f"cannot save the checkpoint of step {trained.state.step} in {folder}: "
            f"{error.__cause__ or error}; the earlier ones are complete: make room and resume"
        ) from error
    return path


def load_checkpoint(path: Path, *, trained: Trained, settings: Mapping[str, Any]) -> None:
    """Put a checkpoint into the objects of `trained`, to go on with `settings`.

    Raises CheckpointError, with the reason, when it is damaged, foreign or of another format, and ConfigError when it
    was made with settings that may not change.
    """
    header = read_header(path)
    check_resumable(header["settings"], settings)
    try:
        _load(path, trained, header)
    except (*_UNLOADABLE, CheckpointError) as error:
        raise CheckpointError(
            f"cannot resume from {path}: {error}; remove that folder to resume from the one before it"
        ) from error


def read_header(path: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint, with "state" as a TrainingState; raises CheckpointError when it cannot be."""
    file = path / "state.json"
    try:
        if damage := find_damage(file):
            raise ValueError(damage)
        header = read_json(file)
        if header["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {header['format_version']}; this deepnet reads {FORMAT_VERSION}"
            )
        return {
            "state": build(TrainingState, header["state"]),
            "guard": build(GuardMemory, header.get("guard", {})),
            **{name: dict(header[name]) for name in ("optimizer", "scaler", "settings")},
        }
    except (OSError, *_UNLOADABLE, ConfigError) as error:
        raise CheckpointError(
            f"{path} is not a complete checkpoint: {file.name}: {error}; "
            "remove that folder to resume from the one before it"
        ) from error


def prune_checkpoints(folder: Path, *, keep_last: int, steps: Collection[int]) -> None:
    """Remove all checkpoints but the latest and those of `steps`, and what killed processes left half-written.

    That of an interruption goes when there is a later one.
    """
    paths = list_checkpoints(folder)
    kept = {*paths[-keep_last:], *(checkpoint_path(folder, step=step) for step in steps)}
    kept.add(latest_checkpoint(folder) or folder)
    _remove(path for path in [*paths, *_interruptions(folder)] if path not in kept)
    for path in folder.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def drop_checkpoints_after(folder: Path, *, step: int) -> None:
    """Remove the checkpoints of later steps, as a run that goes back will make others."""
    _remove(_interruptions(folder))
    _remove(path for path in reversed(list_checkpoints(folder)) if _step(path) > step)


def _interruptions(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"{_INTERRUPTED}_*") if path.is_dir()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # renamed first: a kill while files disappear must not leave a folder that looks complete
        shutil.rmtree(path.rename(path.with_name(f".{path.name}.tmp")))


def _files(trained: Trained) -> dict[str, dict[str, Tensor]]:
    """Return what this rank holds of each file's tensors."""
    engine = trained.engine
    moments, _ = optimizer_state(engine.optimizer, parameters=engine.held)
    files = {
        "model.safetensors": model_tensors(engine.model) | dict(engine.held),
        "optimizer.safetensors": moments,
    }
    return files | ({"ema.safetensors": trained.average.tensors} if trained.average else {})


def _parameter(file: str, name: str) -> str:
    """Return the parameter that a tensor of a file is of."""
    return name.partition(".")[2] if file == "optimizer.safetensors" else name


def _write(folder: Path, trained: Trained) -> None:
    for file, tensors in _files(trained).items():
        _write_file(folder / file, tensors, trained.engine)


def _write_file(path: Path, tensors: Mapping[str, Tensor], engine: Engine) -> None:
    parameters = {name: _parameter(path.name, name) for name in tensors}
    write_tensors(
        path,
        {name: engine.described(parameters[name], held) for name, held in tensors.items()},
        content=lambda name: engine.gather(parameters[name], tensors[name]),
    )


def _send(trained: Trained) -> None:
    """Give the writer what this rank holds of each tensor, in the order in which it is written."""
    for file, tensors in _files(trained).items():
        for name in in_file_order(tensors):
            trained.engine.gather(_parameter(file, name), tensors[name])


def _write_rest(folder: Path, trained: Trained, settings: Mapping[str, Any]) -> None:
    """Write what may become known after the weights of a step are saved: by a validation, or a skipped update."""
    _, numbers = optimizer_state(trained.engine.optimizer, parameters=trained.engine.held)
    write_tensors(folder / "guard.safetensors", trained.guard.history.tensors())
    write_json(
        folder / "state.json",
        {
            "format_version": FORMAT_VERSION,
            "state": asdict(trained.state),
            "optimizer": numbers,
            "scaler": trained.engine.scaler.state_dict(),
            "guard": asdict(trained.guard.memory),
            "settings": settings,
        },
    )
    seal_folder(folder)


def _load(path: Path, trained: Trained, header: Mapping[str, Any]) -> None:
    engine = trained.engine

    def parts(file: str) -> dict[str, Tensor]:
        tensors = read_tensors(path / file)
        return {n: engine.part(_parameter(file, n), tensor) for n, tensor in tensors.items()}

    load_model_tensors(
        engine.model, read_tensors(path / "model.safetensors"), held=engine.held, part=engine.part
    )
    load_optimizer_state(
        engine.optimizer,
        parameters=engine.held,
        tensors=parts("optimizer.safetensors"),
        numbers=header["optimizer"],
    )
    if trained.average:
        trained.average.load(parts("ema.safetensors"))
    engine.scaler.load_state_dict(header["scaler"])
    trained.guard.memory = header["guard"]
    seen = path / "guard.safetensors"
    trained.guard.history.load(read_tensors(seen) if seen.exists() else {})
    vars(trained.state).update(vars(header["state"]))


def _check_finite(trained: Trained) -> None:
    tensors = model_tensors(trained.engine.model) | dict(trained.engine.held)
    found = torch.tensor([not _is_finite(tensor) for tensor in tensors.values()], dtype=torch.int32)
    # on every rank at once, as each may hold another part
    for name, number in zip(tensors, trained.engine.ranks.total(found).tolist(), strict=True):
        if number:
            raise DivergenceError(
                f"after step {trained.state.step} the weight '{name}' is not finite; "
                "no checkpoint was made of it; the earlier ones are good"
            )


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, without a copy of them: the extremes are NaN where any is."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    return all(math.isfinite(extreme.item()) for extreme in tensor.detach().aminmax())
