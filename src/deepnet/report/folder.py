"""A run folder as the report finds it: whatever is there is read, and whatever is not is said.

A run may be going on, may have been trained without probes or by an older deepnet; none of that is an error. A folder
that holds no run is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from deepnet.errors import DataError
from deepnet.lock import is_locked
from deepnet.record import RunFolder
from deepnet.report.readings import Reading, reading_of
from deepnet.report.records import Record, RecordFile

NO_PROBES = (
    "no probes.jsonl: probes.every is 0, or the first reading is still to come, or the run is of a deepnet without "
    "probes; train with probes.every=100 to have one"
)
NO_INCIDENTS = (
    "no incidents.jsonl: nothing happened that the guard looks for, or the guard was off, or the run is of a deepnet "
    "without one"
)
NO_OUTPUTS = (
    "no outputs/test.translation.txt: the test part is translated when training has ended; models of one text have no "
    "translations"
)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The test part of a translator, line N of each belonging to line N of the others."""

    source: list[str]
    reference: list[str]
    translation: list[str]


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """What the report knows of one run."""

    path: Path
    name: str
    """The folder's name, with as many folders above it as tell the runs of a report apart."""
    recipe: dict[str, Any]
    """Section -> key -> value."""
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    """The records of metrics.jsonl, each with an integer "step"."""
    undone: list[dict[str, Any]]
    """Those of undone.jsonl, which the guard's going back took out of metrics.jsonl."""
    readings: list[Reading]
    """The records of probes.jsonl."""
    incidents: list[dict[str, Any]]
    """The records of incidents.jsonl, likewise; "details" is the content of the file it names, or None."""
    scores: dict[str, Any] | None
    """Scores of the test part, None before there are any."""
    bleu_signature: str
    """How the run's BLEUs are computed; before the test part is scored the tokenisation; "" where none is known."""
    samples: Samples | None
    parameters: int | None
    """Trained numbers of the model, None before the first checkpoint."""
    has_bundle: bool
    is_going_on: bool
    """Whether a process on this machine is writing the run."""
    notes: dict[str, list[str]]
    """Section of the report -> what is missing or damaged there, and how to get it."""


def read_runs(folders: Sequence[str | Path]) -> list[ReportedRun]:
    """Read run folders for one report; raises ConfigError where there is none, DataError for a damaged recipe."""
    return [reader.read() for reader in readers_of(folders)]


def readers_of(folders: Sequence[str | Path]) -> "list[RunReader]":
    """Return a reader of each folder, with names that tell them apart; raises as `read_runs`."""
    paths = [Path(folder).resolve() for folder in folders]
    names = distinct_names(paths)
    return [RunReader(path, name=name) for path, name in zip(paths, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of some paths that tell them apart; the same path twice has the same name."""
    different = len(set(paths))
    for length in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == different:
            break
    return names


class RunReader:
    """Reads a run folder, as often as wanted, and collects what it could not read."""

    def __init__(self, path: Path, *, name: str) -> None:
        """Raise ConfigError where `path` holds no run."""
        self.path = path
        self._folder = RunFolder.open(path)
        self._name = name
        self._metrics = RecordFile(self._folder.metrics_path, dict)
        self._undone = RecordFile(self._folder.undone_path, dict)
        self._readings = RecordFile(path / "probes.jsonl", reading_of)
        self._incidents = RecordFile(path / "incidents.jsonl", dict)
        self._notes: dict[str, list[str]] = {}

    def read(self) -> ReportedRun:
        """Return everything there is now; raises DataError for a damaged recipe."""
        self._notes = {}
        scores = self._scores()
        return ReportedRun(
            path=self.path,
            name=self._name,
            recipe=self._recipe(),
            environment=self._object("environment", "environment.json") or {},
            metrics=self._records("training", self._metrics, "no metrics.jsonl: no record yet"),
            undone=self._records("training", self._undone),
            readings=self._records("depth", self._readings, NO_PROBES),
            incidents=self._with_details(),
            scores=scores,
            bleu_signature=self._bleu_signature(scores or {}),
            samples=self._samples(),
            parameters=self._parameters(),
            has_bundle=self._folder.bundle.exists(),
            is_going_on=is_locked(self.path),
            notes=self._notes,
        )

    def _note(self, section: str, text: str) -> None:
        self._notes.setdefault(section, []).append(text)

    def _recipe(self) -> dict[str, Any]:
        recipe = self._folder.read_recipe().get("recipe")
        if not isinstance(recipe, dict):
            raise DataError(f"{self._folder.recipe_path} has no recipe in it")
        return {key: value for key, value in recipe.items() if isinstance(value, dict)}

    def _object(self, section: str, name: str) -> dict[str, Any] | None:
        """Return a file's JSON object, or None with a note where there is none."""
        try:
            value = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            self._note(section, f"no {name}")
            return None
        except (OSError, ValueError) as error:
            self._note(section, f"{name} cannot be read: {error}")
            return None
        if isinstance(value, dict):
            return value
        self._note(section, f"{name} is not a JSON object")
        return None

    def _records(
        self, section: str, file: RecordFile[Record], missing: str | None = None
    ) -> list[Record]:
        """Return the records of a file; none where there is none, with a note where that is worth one."""
        try:
            records = file.read()
        except FileNotFoundError:
            if missing:
                self._note(section, missing)
            return []
        except OSError as error:
            self._note(section, f"{file.found.name} cannot be read: {error.strerror}")
            return []
        if file.damaged:
            self._note(section, f"{file.damaged} damaged lines of {file.found.name} are left out")
        return records

    def _with_details(self) -> list[dict[str, Any]]:
        records = self._records("incidents", self._incidents, NO_INCIDENTS)
        return [{**record, "details": self._details(record)} for record in records]

    def _details(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return the last steps before an incident; a name that leads out of the run folder is not followed."""
        name = record.get("details")
        if not isinstance(name, str):
            return None
        if not (self.path / name).resolve().is_relative_to(self.path):
            self._note("incidents", f"{name} is not in the run folder, and was not read")
            return None
        return self._object("incidents", name)

    def _scores(self) -> dict[str, Any] | None:
        name = "outputs/test.scores.json"
        if not (self.path / name).exists() and (self.path / "test.scores.json").exists():
            name = "test.scores.json"  # where only the small files of a run are kept
        return self._object("summary", name) if (self.path / name).exists() else None

    def _bleu_signature(self, scores: dict[str, Any]) -> str:
        signatures = scores.get("signature")
        if isinstance(signatures, dict) and "bleu" in signatures:
            return str(signatures["bleu"])
        settled = self._folder.read_recipe().get("bleu_tokenization")
        return f"tok:{settled}" if settled else ""

    def _samples(self) -> Samples | None:
        texts = {}
        for name in ("source", "reference", "translation"):
            path = self.path / "outputs" / f"test.{name}.txt"
            try:
                texts[name] = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            except OSError:
                self._note("translations", NO_OUTPUTS)
                return None
        if len({len(lines) for lines in texts.values()}) > 1:
            self._note("translations", "the files in outputs/ have different numbers of lines")
            return None
        return Samples(**texts)

    def _parameters(self) -> int | None:
        """Return the parameters of the model file's header; what is saved besides them is not floating point."""
        saved = sorted(self._folder.checkpoints.glob("[a-z]*_*/model.safetensors"))
        for path in [self._folder.bundle / "model.safetensors", *reversed(saved)]:
            try:
                with safe_open(path, framework="numpy") as file:
                    tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
                    weights = [t for t in tensors if "F" in str(t.get_dtype())]
                    return sum(prod(map(int, t.get_shape())) for t in weights)
            except (OSError, SafetensorError):
                continue
        return None
