"""The steps of one preparation, in order; each reads what the one before it wrote.

The training part goes through in two passes of blocks, which any process works on: one cleans the text and writes it
down with keys of its rows and sentences, one makes ids of it. Between them the keys alone say which rows repeat others
and which are split off. Results come in the order of the text, so that the number of processes decides nothing.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnet.data.binarize import Header, binarize, write_shards
from deepnet.data.cleaning import (
    Cleaning,
    CleaningConfig,
    CleaningCounts,
    drop_empty,
    index_sentences,
    without_tags,
)
from deepnet.data.sources import DataConfig, Sources
from deepnet.data.text import Row, read_rows, write_rows
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, make_tokenizers
from deepnet.data.train_text import TrainText
from deepnet.data.workers import Workers
from deepnet.errors import DataError
from deepnet.record import write_json

FORMAT_VERSION = 2
SUMMARY_FILE = "preparation.json"
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Job:
    """What one preparation works on; every step reads what the one before it wrote into `folder`."""

    config: DataConfig
    cleaning: CleaningConfig
    tokenizer: TokenizerConfig
    sources: Sources
    folder: Path
    report: Callable[[str], None]
    processes: int
    tags: tuple[str, ...] = ()
    """The tags of many languages, which no sentence may have."""

    def text(self, part: str) -> list[Path]:
        """Return where the sentences of a held-out part are kept as text, one file per side."""
        return text_files(self.folder, part, self.config.languages)

    def rows(self, part: str) -> Iterator[Row]:
        """Yield the rows of a part kept as text."""
        return read_rows(self.text(part))

    @property
    def work(self) -> Path:
        """The folder of what is needed while the job is being done."""
        return self.folder / "work"


def run_steps(job: Job, inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Fill `job.folder`: held-out text, tokenizer, shards, summary; raises DataError as the steps do."""
    start = time.monotonic()
    job.work.mkdir()
    counts = {part: keep_held_out(job, part) for part in PARTS[1:] if part in job.sources.parts}
    missing = [part for part in PARTS[1:] if part not in counts]
    counts["train"], tokenizers, header = _prepare_train(job, list(counts), missing)
    headers = {"train": header}
    headers |= {part: binarize_part(job, part, tokenizers) for part in PARTS[1:]}
    shutil.rmtree(job.work)
    done = {
        "counts": {part: count.to_dict() for part, count in counts.items()},
        "split_off": missing,
        "vocab_size": [tokenizers.source.vocab_size, tokenizers.target.vocab_size],
        "parts": {part: part_sizes(job, header) for part, header in headers.items()},
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(job.folder / SUMMARY_FILE, settings(job) | {"inputs": inputs} | done)
    job.report(f"prepared in {done['seconds']} s")


def settings(job: Job) -> dict[str, object]:
    """Return what the summary of a preparation says of what it was made of, and how."""
    return {
        "format_version": FORMAT_VERSION,
        "corpus": job.sources.name,
        "notice": job.sources.notice,
        "languages": list(job.config.languages),
        "data": job.config.model_dump(),
        "cleaning": job.cleaning.model_dump(),
        "tokenizer": job.tokenizer.model_dump(),
    }


def keep_held_out(job: Job, part: str) -> CleaningCounts:
    """Copy a given valid or test part as text; only rows without a sentence on one side are left out.

    Raises DataError where no row is left.
    """
    given = job.sources.parts[part]
    counts = CleaningCounts()
    rows = without_tags(read_rows(given), given, job.tags)
    write_rows(drop_empty(rows, counts=counts), job.text(part))
    job.report(f"{part}: {_describe(job, counts)}")
    if not counts.kept:
        raise DataError(f"{_names(given)}: there is no line with a sentence on every side")
    return counts


def _prepare_train(
    job: Job, given: list[str], missing: list[str]
) -> tuple[CleaningCounts, Tokenizers, Header]:
    """Make the training part and tokenizers; its files are closed afterwards, so that they can be removed anywhere."""
    with Workers(job.processes) as workers:
        index = _index_held_out(job, given) if job.cleaning.drop_held_out else ()
        train = clean_train(job, workers, held_out=index, splits=bool(missing))
        num_train = _split_off(job, train, missing)
        tokenizers = _make_tokenizers(job, train, num_train)
        header = binarize_train(job, train, missing, tokenizers, workers)
        return train.counts, tokenizers, header


def clean_train(
    job: Job, workers: Workers, *, held_out: tuple[Path, ...], splits: bool
) -> TrainText:
    """Write what is fit of the training part into the job's work folder; raises DataError where nothing is.

    `held_out` are the indexes of each side's held-out sentences, none where they may stay; `splits` as in `Cleaning`.
    """
    given = job.sources.parts["train"]
    train = TrainText(job.work, job.config.sides)
    cleaning = Cleaning(job.cleaning, given, held_out=held_out, splits=splits, tags=job.tags)
    train.clean(cleaning, workers)
    counts = train.counts
    job.report(f"train: {_describe(job, counts)}")
    if not counts.kept:
        advice = "check that the files belong together, or " if len(given) > 1 else ""
        raise DataError(
            f"cleaning leaves none of the {counts.read:,} {job.config.unit} of {_names(given)} "
            f"({_reasons(counts)}); {advice}loosen [cleaning]"
        )
    return train


def _index_held_out(job: Job, parts: Sequence[str]) -> tuple[Path, ...]:
    """Write an index of the held-out sentences of each side; none where no part is given."""
    files = zip(*(job.text(part) for part in parts), strict=True)
    folders = [job.work / f"held_out_{side}" for side in job.config.sides]
    return tuple(
        index_sentences(side, folder) for side, folder in zip(files, folders, strict=bool(parts))
    )


def _split_off(job: Job, train: TrainText, missing: Sequence[str]) -> int:
    """Take the parts that were not given out of train; return how many rows stay in it."""
    wanted = {"valid": job.config.valid_pairs, "test": job.config.test_pairs}
    sizes = train.split_off({part: wanted[part] for part in missing}) if missing else {}
    for part, number in sizes.items():
        job.report(f"{part}: {number:,} {job.config.unit} split off train")
    return train.counts.kept - sum(sizes.values())


def _make_tokenizers(job: Job, train: TrainText, num_train: int) -> Tokenizers:
    texts = [train.sentences(side) for side in range(len(job.config.sides))]
    tokenizers = make_tokenizers(texts, num_lines=num_train, config=job.tokenizer)
    tokenizers.save(job.folder)
    origin = (
        "given" if job.tokenizer.source_model else f"trained on {num_train:,} {job.config.unit}"
    )
    sizes = f"{tokenizers.source.vocab_size:,}"
    if not tokenizers.shared:
        sizes += f" and {tokenizers.target.vocab_size:,}"
    job.report(f"tokenizer: {sizes} ids, {origin}")
    return tokenizers


def binarize_train(
    job: Job, train: TrainText, split_off: Sequence[str], tokenizers: Tokenizers, workers: Workers
) -> Header:
    """Make ids of the rows to train on, and keep as text those of the parts that were split off.

    Raises DataError where every row is too long.
    """
    rows = train.encode(
        tokenizers,
        max_length=job.config.max_sentence_tokens,
        held_out=[job.text(part) for part in split_off],
        workers=workers,
    )
    folder, languages = job.folder / "train", job.config.languages
    header = write_shards(rows, folder=folder, tokenizers=tokenizers, languages=languages)
    return _checked(job, "train", header)


def binarize_part(job: Job, part: str, tokenizers: Tokenizers) -> Header:
    """Make ids of a part kept as text; raises DataError where every row is too long."""
    header = binarize(
        job.rows(part),
        folder=job.folder / part,
        tokenizers=tokenizers,
        languages=job.config.languages,
        max_length=job.config.max_sentence_tokens,
    )
    return _checked(job, part, header)


def _checked(job: Job, part: str, header: Header) -> Header:
    """Say how large a part is; raises DataError where it has no row."""
    longer = f"; {header.too_long:,} longer than {job.config.max_sentence_tokens} left out"
    tokens = " + ".join(f"{side.tokens:,}" for side in header.sides)
    job.report(
        f"{part}: {header.rows:,} {job.config.unit}, {tokens} tokens"
        + (longer if header.too_long else "")
    )
    if not header.rows:
        raise DataError(
            f"every {part} {job.config.unit.removesuffix('s')} is longer than data.max_sentence_tokens = "
            f"{job.config.max_sentence_tokens}; raise it"
        )
    return header


def part_sizes(job: Job, header: Header) -> dict[str, int]:
    """Return rows, tokens of each side, longest sentence and rows left out of a part, for the summary."""
    names = [f"{side}_tokens" for side in job.config.sides]
    return {
        job.config.unit: header.rows,
        **{name: side.tokens for name, side in zip(names, header.sides, strict=True)},
        "longest": header.longest,
        "too_long": header.too_long,
    }


def _describe(job: Job, counts: CleaningCounts) -> str:
    reasons = _reasons(counts)
    kept = f"{counts.kept:,} of {counts.read:,} {job.config.unit} kept"
    return kept + (f" ({reasons})" if reasons else "")


def _reasons(counts: CleaningCounts) -> str:
    return ", ".join(f"{reason}: {number:,}" for reason, number in counts.dropped.most_common())


def _names(files: Sequence[Path]) -> str:
    return " and ".join(map(str, files))


def text_files(folder: Path, part: str, languages: Sequence[str]) -> list[Path]:
    """Return where a preparation keeps the sentences of a part as text, one file per language."""
    return [folder / f"{part}.{language}" for language in languages]
