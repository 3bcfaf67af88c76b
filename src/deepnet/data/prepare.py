"""From text to everything training needs, in one call, cached by content.

A preparation is a folder: shards of ids in `train`, `valid` and `test`, the tokenizer's model files, the sentences of
valid and test as text (`valid.de`, ...), and `preparation.json`, which says what went in and what was left out. Its
name contains a hash of the input files, the configuration and the format version, so that the same input is never
prepared twice.

One of many directions has such a folder for each pair of languages (many_steps.py), and the tokenizer once.

Its files alone, without the folders of ids, are a preparation too, whose held-out parts can be had: that much a run
keeps.
"""

import hashlib
import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece

from deepnet.atomic import remove_abandoned
from deepnet.data.binarize import FORMAT_VERSION as SHARD_VERSION
from deepnet.data.binarize import binarize
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.dataset import Rows, TextDataset
from deepnet.data.directions import Direction, Pair, language_tag
from deepnet.data.download import Report as Report
from deepnet.data.fingerprint import file_hashes
from deepnet.data.many_steps import pair_folder, run_many_steps
from deepnet.data.mixture import DirectedText, MixedText
from deepnet.data.sources import DataConfig, find_sources
from deepnet.data.steps import FORMAT_VERSION, PARTS, SUMMARY_FILE, Job, run_steps, text_files
from deepnet.data.text import read_lines, read_rows
from deepnet.data.tokenizer import MODEL_FIELDS, TokenizerConfig, Tokenizers
from deepnet.data.workers import available_cores
from deepnet.errors import ConfigError, DataError
from deepnet.record import atomic_folder

_MEMORY_FILE = "files.json"
Inputs = Mapping[str, Mapping[str, str]]
"""Path and sha256 of every input file by what it is for."""


@dataclass(frozen=True)
class PreparedData:
    """A finished preparation on disk."""

    folder: Path
    tokenizers: Tokenizers
    summary: dict[str, Any]
    """What `preparation.json` says: counts per part and reason, sizes, input files, notice."""
    cached: bool
    """Whether it was there already."""

    @property
    def name(self) -> str:
        """What it is called in a cache; the same contents under the same settings end in the same key."""
        return str(self.summary.get("prepared", self.folder.name))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that it was prepared to train on, where there are many; none where there is one."""
        return tuple(Direction(*one) for one in self.summary.get("directions", ()))

    @property
    def zero_shot(self) -> tuple[Direction, ...]:
        """The directions to test on besides."""
        return tuple(Direction(*one) for one in self.summary.get("zero_shot", ()))

    def of_pair(self, pair: Pair) -> "PreparedData":
        """Return one of many pairs as the preparation of one direction, from the first language into the second."""
        config = DataConfig(**self.summary["data"]).of_pair(pair)
        summary = {**self.summary, "languages": list(pair), "data": config.model_dump()}
        del summary["directions"], summary["zero_shot"]
        return replace(self, folder=pair_folder(self.folder, pair), summary=summary)

    def kept_files(self) -> list[Path]:
        """Return the files that are a preparation without its ids, relative to its folder."""
        found = [*self.folder.glob("*"), *self.folder.glob("pairs/*/*")]
        return sorted(path.relative_to(self.folder) for path in found if path.is_file())

    def dataset(self, part: str) -> Rows:
        """Return the rows of "train", "valid" or "test" as ids; of held-out text that is kept alone they are made.

        Of many directions all rows of all that are trained, one direction after the other.
        """
        return self._mixed(part) if self.directions else self._of_one(part)

    def _mixed(self, part: str) -> MixedText:
        config = DataConfig(**self.summary["data"])
        pairs = sorted({direction.pair for direction in self.directions})
        texts = {pair: self.of_pair(pair)._of_one(part) for pair in pairs}
        return MixedText.of(
            [
                DirectedText(
                    direction=direction,
                    pair=texts[direction.pair],
                    tag=self._tag(direction.target),
                    tags_source=config.tags_source,
                    tags_decoder=config.tags_decoder,
                )
                for direction in self.directions
            ]
        )

    def _tag(self, language: str) -> int:
        tag = self.tokenizers.source.find_piece(language_tag(language))
        if tag is None:
            raise DataError(
                f"the tokenizer of {self.folder} has no piece {language_tag(language)}; prepare the data again"
            )
        return tag

    def _of_one(self, part: str) -> TextDataset:
        if part == "train" or (self.folder / part).exists():
            return TextDataset(self.folder / part, tokenizers=self.tokenizers)
        temporary = TemporaryDirectory(prefix="deepnet-")
        folder = Path(temporary.name) / part
        binarize(
            read_rows(text_files(self.folder, part, self.summary["languages"])),
            folder=folder,
            tokenizers=self.tokenizers,
            languages=tuple(self.summary["languages"]),
            max_length=self.summary["data"]["max_sentence_tokens"],
        )
        made = TextDataset(folder, tokenizers=self.tokenizers)
        weakref.finalize(made, temporary.cleanup)
        return made

    def lines(self, part: str) -> tuple[list[str], ...]:
        """Return each side's sentences of "valid" or "test" as text: sources to translate, targets to score against.

        Of many directions those of all that are trained, one direction after the other.
        """
        if self.directions:
            texts = [self.lines_of(direction, part) for direction in self.directions]
            return tuple([*chain.from_iterable(side)] for side in zip(*texts, strict=True))
        files = text_files(self.folder, part, self.summary["languages"])
        return tuple(list(read_lines(file)) for file in files)

    def lines_of(self, direction: Direction, part: str) -> tuple[list[str], list[str]]:
        """Return the sources and references of "valid" or "test" in one of many directions, trained or not."""
        first, second = self.of_pair(direction.pair).lines(part)
        return (first, second) if direction.source < direction.target else (second, first)


def prepare(
    config: DataConfig,
    *,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    cache_dir: str | Path,
    report: Report | None = None,
    repeats: PreparedData | None = None,
    processes: int | None = None,
) -> PreparedData:
    """Return the preparation of this text under these settings, from `cache_dir` or made now.

    It is made in `processes`, one per core unless told otherwise, whose number changes no byte of it. Raises
    ConfigError or DataError when the text or the settings cannot be used, or would give another preparation than the
    one that this `repeats`; nothing is left behind then.
    """
    report = report or say_nothing
    cache = Path(cache_dir)
    remove_abandoned(cache)
    sources = find_sources(config, downloads=cache / "corpora", report=report)
    files = {**sources.inputs(config.sides), **_models(tokenizer)}
    inputs = fingerprint_files(files, cache_dir=cache)
    key = _key(config, cleaning, tokenizer, inputs)
    if repeats:
        check_contents(inputs, repeats.summary["inputs"])
        _check_key(key, repeats.name)
    folder = find_prepared(cache, key)
    cached = folder is not None
    if folder is None:
        folder = cache / f"{sources.name}-{key}"
        job = Job(
            config, cleaning, tokenizer, sources, folder, report, processes or available_cores()
        )
        _make(job, inputs)
    prepared = open_prepared(folder, cached=cached)
    if cached:
        report_found(prepared, config.unit, report)
    own = {"inputs": inputs, "corpus": sources.name, "notice": sources.notice}
    return replace(prepared, summary={**prepared.summary, **own})


def find_prepared(cache_dir: str | Path, name: str) -> Path | None:
    """Return the finished preparation of the cache whose name ends in the same key, None where there is none."""
    key = name.rpartition("-")[2]
    folders = sorted(Path(cache_dir).glob(f"*-{key}"))
    return next((folder for folder in folders if (folder / SUMMARY_FILE).exists()), None)


def report_found(prepared: PreparedData, unit: str, report: Report) -> None:
    """Say where prepared data are, and how many pairs or lines."""
    parts = prepared.summary["parts"]
    sizes = ", ".join(f"{part} {parts[part][unit]:,}" for part in PARTS)
    report(f"prepared data found in {prepared.folder}: {sizes} {unit}")


def _make(job: Job, inputs: Inputs) -> None:
    """Run the steps into the job's folder, unless another process does so first."""
    job.report(f"preparing data in {job.folder}")
    try:
        with atomic_folder(job.folder) as new:
            steps = run_many_steps if job.config.pairs else run_steps
            steps(replace(job, folder=new), inputs)
    except OSError as error:
        if not (job.folder / SUMMARY_FILE).exists():
            raise DataError(
                f"cannot write prepared data to {job.folder}: {error.strerror or error}"
            ) from error


def open_prepared(folder: str | Path, *, cached: bool = True) -> PreparedData:
    """Open a folder made by `prepare`; raises DataError when it is not one."""
    folder = Path(folder)
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not prepared data ({error}); prepare it again") from error
    return PreparedData(folder, Tokenizers.load(folder), summary, cached)


def _models(tokenizer: TokenizerConfig) -> dict[str, Path]:
    """Return the tokenizers that are given, by their key."""
    models = tokenizer.model_dump(include=set(MODEL_FIELDS))
    return {name: Path(path) for name, path in models.items() if path}


def fingerprint_files(files: Mapping[str, Path], *, cache_dir: str | Path) -> Inputs:
    """Return path and sha256 of files by what they are for; raises DataError where one cannot be read."""
    hashes = file_hashes(files.values(), memory=Path(cache_dir) / _MEMORY_FILE)
    return {
        role: {"path": str(path.absolute()), "sha256": hashes[path]} for role, path in files.items()
    }


def check_contents(inputs: Inputs, earlier: Inputs) -> None:
    """Raise ConfigError, naming the files, where some have other contents than they had for an earlier preparation."""
    both = inputs.keys() & earlier.keys()
    changed = sorted(
        inputs[role]["path"] for role in both if inputs[role]["sha256"] != earlier[role]["sha256"]
    )
    if changed:
        raise ConfigError(
            f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the text was prepared; "
            "a resumed run goes on with the text it began with: put back what was there, or, while the prepared data "
            "are in the cache, move away what is there now"
        )


def _check_key(key: str, name: str) -> None:
    if not name.endswith(f"-{key}"):
        raise ConfigError(
            f"this deepnet with sentencepiece {sentencepiece.__version__} prepares the same files differently than "
            f"{name} was prepared; use the versions of then"
        )


def _key(
    config: DataConfig,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    inputs: Inputs,
) -> str:
    """Return a hash of all that decides the result; of the files their content, not their paths."""
    decides = {
        "versions": [FORMAT_VERSION, SHARD_VERSION, sentencepiece.__version__],
        "data": config.deciding(),
        "cleaning": cleaning.model_dump(),
        "tokenizer": tokenizer.model_dump(exclude=set(MODEL_FIELDS)),
        "inputs": {role: file["sha256"] for role, file in inputs.items()},
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def say_nothing(message: str) -> None:
    """Take the place of a report."""
