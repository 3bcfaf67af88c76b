"""What a run leaves on disk: a folder with the recipe, the environment, the metrics, checkpoints and the bundle.

Every file appears whole or not at all; only metrics.jsonl and its like are appended to, a line at a
time, by one process.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch

from deepnet.atomic import atomic_folder as atomic_folder
from deepnet.atomic import atomic_write as atomic_write
from deepnet.atomic import remove_abandoned
from deepnet.atomic import sync_folder as sync_folder
from deepnet.errors import ConfigError, DataError, DeepNetError
from deepnet.lock import locked_folder
from deepnet.version import __version__

FORMAT_VERSION = 1
"""The version of a run folder's own files: recipe.json, environment.json and metrics.jsonl."""

_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors", "pydantic")


def write_json(path: str | Path, data: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write `data` atomically as UTF-8 JSON; NaN and infinity are refused, as JSON has neither."""
    text = json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


def append_jsonl(path: str | Path, record: Mapping[str, Any]) -> None:
    """Append one JSON object as one line; raises DeepNetError when the disk refuses."""
    line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
    try:
        with Path(path).open("ab") as file:
            file.write(line.encode())
    except OSError as error:
        raise DeepNetError(f"cannot append to {path}: {error.strerror or error}") from error


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file; an unfinished last line, as a kill leaves it, is not one of them.

    Raises DataError when any other line is not a JSON object.
    """
    path = Path(path)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [_json_object(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def keep_steps(path: str | Path, last_step: int) -> None:
    """Cut a metrics file back to the records up to `last_step`, so that a resumed run writes each step once."""
    rewrite_jsonl(path, [record for record in read_jsonl(path) if record["step"] <= last_step])


def rewrite_jsonl(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file anew, atomically."""
    with atomic_write(path) as file:
        for record in records:
            file.write(json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: recipe, environment, text, metrics, probes, incidents, checkpoints and bundle."""

    path: Path

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        recipe: Mapping[str, Any],
        start_from: str | None = None,
        bleu_tokenization: str | None = None,
    ) -> Self:
        """Start a run in `path`, which may exist but not hold a run; raises ConfigError when it does."""
        cls.check_free(path)
        run = cls(Path(path))
        _make_folder(run.path)
        run.describe(recipe=recipe, start_from=start_from, bleu_tokenization=bleu_tokenization)
        return run

    @classmethod
    @contextmanager
    def locked(
        cls,
        path: str | Path,
        *,
        recipe: Mapping[str, Any],
        resume: bool = False,
        start_from: str | None = None,
        bleu_tokenization: str | None = None,
    ) -> Iterator[Self]:
        """Yield the run in `path`, a new one or the one to resume, that no other process can write meanwhile.

        Raises ConfigError where another process does, or where `open` or `create` would.
        """
        if resume:
            cls.open(path)
        else:
            cls.check_free(path)
            _make_folder(Path(path))
        with locked_folder(Path(path)):
            for folder in (Path(path), cls(Path(path)).checkpoints, Path(path) / "outputs"):
                remove_abandoned(folder)
            if resume:
                yield cls.open(path)
            else:
                yield cls.create(
                    path,
                    recipe=recipe,
                    start_from=start_from,
                    bleu_tokenization=bleu_tokenization,
                )

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        """Raise ConfigError where `path` is a file or holds what a run has trained or measured; nothing is written."""
        run = cls(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise ConfigError(f"{path} is a file; a run needs a folder")
        held = [file.name for file in run._own_paths() if file.exists()]
        if held:
            raise ConfigError(
                f"{path} holds another run ({', '.join(held)}); choose another folder, or resume that run"
            )

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the run in `path`; raises ConfigError when it holds none, or one of a later format."""
        run = cls(Path(path))
        if not run.recipe_path.exists():
            raise ConfigError(f"{path} holds no run: there is no {run.recipe_path.name} in it")
        version = run.read_recipe().get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{run.recipe_path} has format version {version}; this deepnet reads {FORMAT_VERSION}"
            )
        return run

    def describe(
        self,
        *,
        recipe: Mapping[str, Any],
        start_from: str | None = None,
        bleu_tokenization: str | None = None,
    ) -> None:
        """Write the resolved recipe and the environment it runs in, at the start and at each resumption.

        `start_from` is where the run's first weights come from, None where they are drawn. `bleu_tokenization` is what
        "auto" came to, None where nothing is translated.
        """
        write_json(self.environment_path, {"format_version": FORMAT_VERSION, **environment()})
        described = {
            "recipe": recipe,
            "start_from": start_from,
            "bleu_tokenization": bleu_tokenization,
        }
        write_json(self.recipe_path, {"format_version": FORMAT_VERSION, **described})

    def read_recipe(self) -> dict[str, Any]:
        """Return the content of recipe.json; raises DataError when it is damaged."""
        return _json_object(self.recipe_path.read_bytes(), str(self.recipe_path))

    @property
    def recipe_path(self) -> Path:
        """The resolved recipe: every key with the value the run uses."""
        return self.path / "recipe.json"

    @property
    def environment_path(self) -> Path:
        """Versions, device and threads of the latest session."""
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        """The folder of what the run keeps of its text: tokenizer, valid and test, and what it was prepared from."""
        return self.path / "data"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per recorded update."""
        return self.path / "metrics.jsonl"

    @property
    def undone_path(self) -> Path:
        """The records that metrics.jsonl lost when the guard sent the run back to an earlier step."""
        return self.path / "undone.jsonl"

    @property
    def probes_path(self) -> Path:
        """One JSON object per reading of the probes, by probe, place and layer."""
        return self.path / "probes.jsonl"

    @property
    def probe_start(self) -> Path:
        """What the probes compare later readings with."""
        return self.path / "probe_start.safetensors"

    @property
    def incidents_path(self) -> Path:
        """One JSON object per incident that the guard found."""
        return self.path / "incidents.jsonl"

    @property
    def incidents(self) -> Path:
        """The folder of the incidents' last updates, one file each."""
        return self.path / "incidents"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, one folder each."""
        return self.path / "checkpoints"

    @property
    def bundle(self) -> Path:
        """The folder of the finished model."""
        return self.path / "bundle"

    def _own_paths(self) -> tuple[Path, ...]:
        return (
            self.metrics_path,
            self.probes_path,
            self.incidents_path,
            self.checkpoints,
            self.bundle,
        )


def environment() -> dict[str, Any]:
    """Return what a number depends on besides the recipe: versions, processor, threads, device and git commit."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "deepnet": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "cuda_devices": [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ],
    }


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeepNetError(f"cannot make the folder {path}: {error.strerror}") from error


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object")
    return value


def _git_commit() -> str | None:
    """Return the commit checked out where the run was started, or None outside a git repository."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
