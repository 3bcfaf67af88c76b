"""Records as TensorBoard scalars; the one file that imports tensorboard."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from deepnet.errors import ConfigError


class TensorBoardSink:
    """A sink of the loop's records that writes every number as a scalar over the step."""

    def __init__(self, folder: Path) -> None:
        """Raise ConfigError where TensorBoard is not installed; the folder is made by the first record."""
        try:
            self._module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ConfigError(
                "TensorBoard is not installed; install 'deepnet-transformers[tensorboard]' or leave it off"
            ) from error
        self._folder = folder
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer:
            self._writer.close()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Write one record; a session's first one hides what an earlier session wrote from that step on."""
        if not self._writer:
            folder, step = str(self._folder), record["step"]
            self._writer = self._module.SummaryWriter(folder, purge_step=step)
        for name, value in record.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, record["step"])
