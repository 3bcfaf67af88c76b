"""The steps of a preparation of many directions: each pair of languages by itself, under one vocabulary.

A pair is prepared once, for both directions, into `pairs/<first>-<second>`, which is laid out as the preparation of one
direction is. What is held out in any pair is left out of the training part of all: the sentences of a language that
stand in its valid and test files. The vocabulary learns each language from the pair in which it has most sentences.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from deepnet.data.cleaning import index_sentences
from deepnet.data.directions import Pair, language_tag
from deepnet.data.sources import Sources
from deepnet.data.steps import (
    PARTS,
    SUMMARY_FILE,
    Job,
    binarize_part,
    binarize_train,
    clean_train,
    keep_held_out,
    part_sizes,
    settings,
)
from deepnet.data.tokenizer import Tokenizers, make_joint_tokenizer
from deepnet.data.train_text import TrainText
from deepnet.data.workers import Workers
from deepnet.errors import DataError
from deepnet.record import write_json

FEW_PAIRS = 100
"""A language with fewer sentences than this is warned of."""


def pair_folder(folder: Path, pair: Pair) -> Path:
    """Return where a preparation keeps one of its pairs."""
    return folder / "pairs" / "-".join(pair)


def run_many_steps(job: Job, inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Fill `job.folder`: held-out text and shards of each pair, a tokenizer, summary; raises DataError as steps do."""
    start = time.monotonic()
    job.work.mkdir()
    job = replace(job, tags=tuple(map(language_tag, job.sources.languages)))
    jobs = {pair: _job_of(job, pair) for pair in job.sources.pairs}
    trained = {direction.pair for direction in job.sources.directions}
    counts = {pair: _keep_parts(one) for pair, one in jobs.items()}
    with Workers(job.processes) as workers:
        texts = _clean(job, {pair: jobs[pair] for pair in jobs if pair in trained}, workers)
        tokenizers = _make_tokenizers(job, texts)
        sizes = {
            pair: _binarize(jobs[pair], text, tokenizers, workers) for pair, text in texts.items()
        }
    for pair, text in texts.items():
        counts[pair]["train"] = text.counts.to_dict()
    shutil.rmtree(job.work)
    done = {
        "languages": job.sources.languages,
        "directions": [[d.source, d.target] for d in job.sources.directions],
        "zero_shot": [[d.source, d.target] for d in job.sources.zero_shot],
        "pairs": {
            "-".join(pair): {"counts": counts[pair], "parts": sizes.get(pair, {})} for pair in jobs
        },
        "vocab_size": [tokenizers.source.vocab_size] * 2,
        "parts": {part: _in_all([size[part] for size in sizes.values()]) for part in PARTS},
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(job.folder / SUMMARY_FILE, settings(job) | {"inputs": inputs} | done)
    job.report(f"prepared in {done['seconds']} s")


def _job_of(job: Job, pair: Pair) -> Job:
    """Return the job of one pair, in a folder of its own that is made."""
    name = "-".join(pair)
    folder = pair_folder(job.folder, pair)
    one = replace(
        job,
        config=job.config.of_pair(pair),
        sources=Sources(job.sources.name, job.sources.notice, job.sources.pairs[pair]),
        folder=folder,
        report=lambda message: job.report(f"{name} {message}"),
    )
    folder.mkdir(parents=True)
    return one


@contextmanager
def _naming(job: Job) -> Iterator[None]:
    """Say in an error which pair it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"pair {'-'.join(job.config.languages)}: {error}") from error


def _keep_parts(job: Job) -> dict[str, Any]:
    with _naming(job):
        return {part: keep_held_out(job, part).to_dict() for part in PARTS[1:]}


def _clean(job: Job, jobs: Mapping[Pair, Job], workers: Workers) -> dict[Pair, TrainText]:
    """Return the cleaned training part of each pair, and warn of languages with little of it."""
    index = _index_held_out(job) if job.cleaning.drop_held_out else {}
    found = {}
    for pair, one in jobs.items():
        held_out = tuple(index[language] for language in pair) if index else ()
        one.work.mkdir()
        with _naming(one):
            found[pair] = clean_train(one, workers, held_out=held_out, splits=False)
    _warn_of_few(job, found)
    return found


def _index_held_out(job: Job) -> dict[str, Path]:
    """Write an index of the held-out sentences of each language, in whichever pair they are."""
    files: dict[str, set[Path]] = {language: set() for language in job.sources.languages}
    for pair, parts in job.sources.pairs.items():
        for part in PARTS[1:]:
            for language, file in zip(pair, parts[part], strict=True):
                files[language].add(file)
    return {
        language: index_sentences(sorted(paths), job.work / f"held_out_{language}")
        for language, paths in files.items()
    }


def _warn_of_few(job: Job, texts: Mapping[Pair, TrainText]) -> None:
    for language, pair in _largest_pairs(texts).items():
        if (kept := texts[pair].counts.kept) < FEW_PAIRS:
            job.report(
                f"warning: '{language}' has {kept:,} sentences to learn from, fewer than {FEW_PAIRS}; at "
                f"data.sampling_temperature = {job.config.sampling_temperature:g} an epoch may repeat them often"
            )


def _largest_pairs(texts: Mapping[Pair, TrainText]) -> dict[str, Pair]:
    """Return of each language the pair in which it has most sentences."""
    languages = sorted(set(chain.from_iterable(texts)))
    return {
        language: max(
            (pair for pair in texts if language in pair), key=lambda pair: texts[pair].counts.kept
        )
        for language in languages
    }


def _make_tokenizers(job: Job, texts: Mapping[Pair, TrainText]) -> Tokenizers:
    largest = _largest_pairs(texts)
    samples = (
        (texts[pair].sentences(pair.index(language)), texts[pair].counts.kept)
        for language, pair in largest.items()
    )
    tokenizers = make_joint_tokenizer(samples, control_symbols=job.tags, config=job.tokenizer)
    tokenizers.save(job.folder)
    origin = "given" if job.tokenizer.source_model else f"trained on {len(largest)} languages"
    job.report(f"tokenizer: {tokenizers.source.vocab_size:,} ids, {origin}")
    return tokenizers


def _binarize(
    job: Job, train: TrainText, tokenizers: Tokenizers, workers: Workers
) -> dict[str, dict[str, int]]:
    """Make ids of all parts of a pair, and return their sizes."""
    with _naming(job):
        headers = {"train": binarize_train(job, train, [], tokenizers, workers)}
        headers |= {part: binarize_part(job, part, tokenizers) for part in PARTS[1:]}
    shutil.rmtree(job.work)
    return {part: part_sizes(job, header) for part, header in headers.items()}


def _in_all(sizes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the sizes of a part over all pairs: sums, but of "longest" the largest."""
    return {
        name: (max if name == "longest" else sum)(size[name] for size in sizes) for name in sizes[0]
    }
