"""The steps of one preparation, in order; each reads what the one before it wrote."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepnet.data.binarize import Header, binarize
from deepnet.data.cleaning import (
    CleaningConfig,
    CleaningCounts,
    HeldOut,
    clean,
    drop_empty,
)
from deepnet.data.sources import DataConfig, Sources
from deepnet.data.split import TRAIN, split_by_hash
from deepnet.data.text import Row, read_rows, write_rows
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, make_tokenizers
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

    def text(self, part: str) -> list[Path]:
        """Return where the sentences of a part are kept as text, one file per side."""
        return text_files(self.folder, part, self.config.languages)

    def rows(self, part: str) -> Iterator[Row]:
        """Yield the rows of a part kept as text."""
        return read_rows(self.text(part))


def run_steps(job: Job, inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Fill `job.folder`: held-out text, cleaned train, tokenizer, shards, summary; raises DataError as they do."""
    start = time.monotonic()
    counts = {part: _keep_held_out(job, part) for part in PARTS[1:] if part in job.sources.parts}
    counts["train"] = _clean_train(job, list(counts))
    missing = [part for part in PARTS[1:] if part not in counts]
    num_train = _split_off(job, missing) if missing else counts["train"].kept
    tokenizers = _make_tokenizers(job, num_train)
    headers = {part: _binarize(job, part, tokenizers) for part in PARTS}
    for path in job.text("train"):
        path.unlink()
    done = {
        "counts": {part: count.to_dict() for part, count in counts.items()},
        "split_off": missing,
        "vocab_size": [tokenizers.source.vocab_size, tokenizers.target.vocab_size],
        "parts": {part: _sizes(job, header) for part, header in headers.items()},
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(job.folder / SUMMARY_FILE, _settings(job) | {"inputs": inputs} | done)
    job.report(f"prepared in {done['seconds']} s")


def _settings(job: Job) -> dict[str, object]:
    return {
        "format_version": FORMAT_VERSION,
        "corpus": job.sources.name,
        "notice": job.sources.notice,
        "languages": list(job.config.languages),
        "data": job.config.model_dump(),
        "cleaning": job.cleaning.model_dump(),
        "tokenizer": job.tokenizer.model_dump(),
    }


def _keep_held_out(job: Job, part: str) -> CleaningCounts:
    """Copy a given valid or test part as text; only rows without a sentence on one side are left out."""
    given = job.sources.parts[part]
    counts = CleaningCounts()
    write_rows(drop_empty(read_rows(given), counts=counts), job.text(part))
    job.report(f"{part}: {_describe(job, counts)}")
    if not counts.kept:
        raise DataError(f"{_names(given)}: there is no line with a sentence on every side")
    return counts


def _clean_train(job: Job, held_out_parts: list[str]) -> CleaningCounts:
    given = job.sources.parts["train"]
    counts = CleaningCounts()
    rows = clean(
        read_rows(given),
        config=job.cleaning,
        held_out=HeldOut.of(row for part in held_out_parts for row in job.rows(part)),
        counts=counts,
    )
    write_rows(rows, job.text("train"))
    job.report(f"train: {_describe(job, counts)}")
    if not counts.kept:
        advice = "check that the files belong together, or " if len(given) > 1 else ""
        raise DataError(
            f"cleaning leaves none of the {counts.read:,} {job.config.unit} of {_names(given)} "
            f"({_reasons(counts)}); {advice}loosen [cleaning]"
        )
    return counts


def _split_off(job: Job, missing: list[str]) -> int:
    """Move rows from train to the parts that were not given; return how many stay in train."""
    wanted = {"valid": job.config.valid_pairs, "test": job.config.test_pairs}
    parts = split_by_hash(
        job.rows("train"), wanted={part: wanted[part] for part in missing}, sides=job.config.sides
    )
    for index, part in enumerate(missing):
        number = write_rows(_chosen(job, parts == index), job.text(part))
        job.report(f"{part}: {number:,} {job.config.unit} split off train")
    number = write_rows(_chosen(job, parts == TRAIN), job.text("rest"))
    for rest, train in zip(job.text("rest"), job.text("train"), strict=True):
        rest.replace(train)
    return number


def _chosen(job: Job, mask: NDArray[np.bool_]) -> Iterator[Row]:
    return compress(job.rows("train"), mask)


def _make_tokenizers(job: Job, num_train: int) -> Tokenizers:
    tokenizers = make_tokenizers(job.text("train"), num_lines=num_train, config=job.tokenizer)
    tokenizers.save(job.folder)
    origin = (
        "given" if job.tokenizer.source_model else f"trained on {num_train:,} {job.config.unit}"
    )
    sizes = f"{tokenizers.source.vocab_size:,}"
    if not tokenizers.shared:
        sizes += f" and {tokenizers.target.vocab_size:,}"
    job.report(f"tokenizer: {sizes} ids, {origin}")
    return tokenizers


def _binarize(job: Job, part: str, tokenizers: Tokenizers) -> Header:
    header = binarize(
        job.rows(part),
        folder=job.folder / part,
        tokenizers=tokenizers,
        languages=job.config.languages,
        max_length=job.config.max_sentence_tokens,
    )
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


def _sizes(job: Job, header: Header) -> dict[str, int]:
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
