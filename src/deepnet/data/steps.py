"""The steps of one preparation, in order; each reads what the one before it wrote."""

import time
from collections.abc import Callable, Iterator, Mapping
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
    drop_untranslated,
)
from deepnet.data.sources import DataConfig, Sources, TextPair
from deepnet.data.split import TRAIN, split_by_hash
from deepnet.data.text import read_pairs, write_pairs
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, make_tokenizers
from deepnet.errors import DataError
from deepnet.record import write_json

FORMAT_VERSION = 1
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

    def text(self, part: str) -> TextPair:
        """Return where the sentences of a part are kept as text."""
        return text_files(self.folder, part, self.config.languages)

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Yield the sentences of a part kept as text."""
        files = self.text(part)
        return read_pairs(files.source, files.target)


def run_steps(job: Job, inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Fill `job.folder`: held-out text, cleaned train, tokenizer, shards, summary; raises DataError as they do."""
    start = time.monotonic()
    counts = {part: _keep_held_out(job, part) for part in PARTS[1:] if part in job.sources.parts}
    counts["train"] = _clean_train(job, list(counts))
    missing = [part for part in PARTS[1:] if part not in counts]
    num_train = _split_off(job, missing) if missing else counts["train"].kept
    tokenizers = _make_tokenizers(job, num_train)
    headers = {part: _binarize(job, part, tokenizers) for part in PARTS}
    for path in (job.text("train").source, job.text("train").target):
        path.unlink()
    done = {
        "counts": {part: count.to_dict() for part, count in counts.items()},
        "split_off": missing,
        "vocab_size": [tokenizers.source.vocab_size, tokenizers.target.vocab_size],
        "parts": {part: _sizes(header) for part, header in headers.items()},
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
    """Copy a given valid or test part as text; only pairs without a translation are left out."""
    given, kept = job.sources.parts[part], job.text(part)
    counts = CleaningCounts()
    pairs = drop_untranslated(read_pairs(given.source, given.target), counts=counts)
    write_pairs(pairs, source=kept.source, target=kept.target)
    job.report(f"{part}: {_describe(counts)}")
    if not counts.kept:
        raise DataError(f"{given.source} and {given.target} have no line that both translate")
    return counts


def _clean_train(job: Job, held_out_parts: list[str]) -> CleaningCounts:
    given, kept = job.sources.parts["train"], job.text("train")
    counts = CleaningCounts()
    pairs = clean(
        read_pairs(given.source, given.target),
        config=job.cleaning,
        held_out=HeldOut.of(pair for part in held_out_parts for pair in job.pairs(part)),
        counts=counts,
    )
    write_pairs(pairs, source=kept.source, target=kept.target)
    job.report(f"train: {_describe(counts)}")
    if not counts.kept:
        raise DataError(
            f"cleaning leaves none of the {counts.read:,} pairs of {given.source} and {given.target} "
            f"({_reasons(counts)}); check that the files belong together, or loosen [cleaning]"
        )
    return counts


def _split_off(job: Job, missing: list[str]) -> int:
    """Move pairs from train to the parts that were not given; return how many stay in train."""
    wanted = {"valid": job.config.valid_pairs, "test": job.config.test_pairs}
    parts = split_by_hash(job.pairs("train"), wanted={part: wanted[part] for part in missing})
    for index, part in enumerate(missing):
        files = job.text(part)
        number = write_pairs(_chosen(job, parts == index), source=files.source, target=files.target)
        job.report(f"{part}: {number:,} pairs split off train")
    rest, train = job.text("rest"), job.text("train")
    number = write_pairs(_chosen(job, parts == TRAIN), source=rest.source, target=rest.target)
    rest.source.replace(train.source)
    rest.target.replace(train.target)
    return number


def _chosen(job: Job, mask: NDArray[np.bool_]) -> Iterator[tuple[str, str]]:
    return compress(job.pairs("train"), mask)


def _make_tokenizers(job: Job, num_train: int) -> Tokenizers:
    files = job.text("train")
    tokenizers = make_tokenizers(
        files.source, target=files.target, num_lines=num_train, config=job.tokenizer
    )
    tokenizers.save(job.folder)
    origin = "given" if job.tokenizer.source_model else f"trained on {num_train:,} pairs"
    sizes = f"{tokenizers.source.vocab_size:,}"
    if not tokenizers.shared:
        sizes += f" and {tokenizers.target.vocab_size:,}"
    job.report(f"tokenizer: {sizes} ids, {origin}")
    return tokenizers


def _binarize(job: Job, part: str, tokenizers: Tokenizers) -> Header:
    header = binarize(
        job.pairs(part),
        folder=job.folder / part,
        tokenizers=tokenizers,
        languages=job.config.languages,
        max_length=job.config.max_sentence_tokens,
    )
    longer = f"; {header.too_long:,} longer than {job.config.max_sentence_tokens} left out"
    job.report(
        f"{part}: {header.pairs:,} pairs, {header.source_tokens:,} + {header.target_tokens:,} tokens"
        + (longer if header.too_long else "")
    )
    if not header.pairs:
        raise DataError(
            f"every {part} pair is longer than data.max_sentence_tokens = "
            f"{job.config.max_sentence_tokens}; raise it"
        )
    return header


def _sizes(header: Header) -> dict[str, int]:
    return {
        "pairs": header.pairs,
        "source_tokens": header.source_tokens,
        "target_tokens": header.target_tokens,
        "longest": header.longest,
        "too_long": header.too_long,
    }


def _describe(counts: CleaningCounts) -> str:
    reasons = _reasons(counts)
    return f"{counts.kept:,} of {counts.read:,} pairs kept" + (f" ({reasons})" if reasons else "")


def _reasons(counts: CleaningCounts) -> str:
    return ", ".join(f"{reason}: {number:,}" for reason, number in counts.dropped.most_common())


def text_files(folder: Path, part: str, languages: tuple[str, str]) -> TextPair:
    """Return where a preparation keeps the sentences of a part as text."""
    return TextPair(folder / f"{part}.{languages[0]}", folder / f"{part}.{languages[1]}")
