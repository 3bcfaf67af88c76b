"""From text to everything training needs, in one call, cached by content.

A preparation is a folder: shards of ids in `train`, `valid` and `test`, the tokenizer's model files, the sentences of
valid and test as text (`valid.de`, ...), and `preparation.json`, which says what went in and what was left out. Its
name contains a hash of the input files, the configuration and the format version, so that the same input is never
prepared twice.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from deepnet.data.binarize import FORMAT_VERSION as SHARD_VERSION
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.dataset import TextDataset
from deepnet.data.sources import FILE_FIELDS, DataConfig, Sources, find_sources
from deepnet.data.steps import FORMAT_VERSION, PARTS, SUMMARY_FILE, Job, run_steps, text_files
from deepnet.data.text import file_sha256, read_lines
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers
from deepnet.errors import DataError
from deepnet.record import atomic_folder

_MODEL_FIELDS = {"source_model", "target_model"}
Report = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """A finished preparation on disk."""

    folder: Path
    tokenizers: Tokenizers
    summary: dict[str, Any]
    """What `preparation.json` says: counts per part and reason, sizes, input files, notice."""
    cached: bool
    """Whether it was there already."""

    def dataset(self, part: str) -> TextDataset:
        """Return the rows of "train", "valid" or "test" as ids."""
        return TextDataset(self.folder / part, tokenizers=self.tokenizers)

    def lines(self, part: str) -> tuple[list[str], ...]:
        """Return each side's sentences of "valid" or "test" as text: sources to translate, targets to score against."""
        files = text_files(self.folder, part, self.summary["languages"])
        return tuple(list(read_lines(file)) for file in files)


def prepare(
    config: DataConfig,
    *,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    cache_dir: str | Path,
    report: Report | None = None,
) -> PreparedData:
    """Return the preparation of this text under these settings, from `cache_dir` or made now.

    Raises ConfigError or DataError when the text or the settings cannot be used; nothing is left behind then.
    """
    report = report or _say_nothing
    cache = Path(cache_dir)
    sources = find_sources(config, downloads=cache / "corpora", report=report)
    inputs = _fingerprint_files(config.sides, sources, tokenizer)
    folder = cache / f"{sources.name}-{_key(config, cleaning, tokenizer, inputs)}"
    cached = (folder / SUMMARY_FILE).exists()
    if not cached:
        report(f"preparing data in {folder}")
        try:
            with atomic_folder(folder) as new:
                run_steps(Job(config, cleaning, tokenizer, sources, new, report), inputs)
        except OSError as error:
            if not (folder / SUMMARY_FILE).exists():  # else another process was first
                raise DataError(
                    f"cannot write prepared data to {folder}: {error.strerror or error}"
                ) from error
    prepared = open_prepared(folder, cached=cached)
    if cached:
        parts = prepared.summary["parts"]
        sizes = (f"{part} {parts[part][config.unit]:,}" for part in PARTS)
        report(f"prepared data found in {folder}: {', '.join(sizes)} {config.unit}")
    return prepared


def open_prepared(folder: str | Path, *, cached: bool = True) -> PreparedData:
    """Open a folder made by `prepare`; raises DataError when it is not one."""
    folder = Path(folder)
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not prepared data ({error}); prepare it again") from error
    return PreparedData(folder, Tokenizers.load(folder), summary, cached)


def _fingerprint_files(
    sides: Sequence[str], sources: Sources, tokenizer: TokenizerConfig
) -> dict[str, dict[str, str]]:
    """Return path and sha256 of every input file by what it is for."""
    paths: dict[str, Path] = {}
    for part, files in sources.parts.items():
        paths |= {f"{part}_{side}": file for side, file in zip(sides, files, strict=True)}
    for name in _MODEL_FIELDS:
        if path := tokenizer.model_dump()[name]:
            paths[name] = Path(path)
    return {role: {"path": str(path), "sha256": file_sha256(path)} for role, path in paths.items()}


def _key(
    config: DataConfig,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    inputs: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a hash of all that decides the result; of the files their content, not their paths."""
    decides = {
        "versions": [FORMAT_VERSION, SHARD_VERSION, sentencepiece.__version__],
        "data": config.model_dump(exclude=set(FILE_FIELDS)),
        "cleaning": cleaning.model_dump(),
        "tokenizer": tokenizer.model_dump(exclude=_MODEL_FIELDS),
        "inputs": {role: file["sha256"] for role, file in inputs.items()},
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def _say_nothing(message: str) -> None:
    """Take the place of a report."""
