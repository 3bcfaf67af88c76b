"""From lines of text to lines of text: streaming, in input order, whatever the batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

from deepnet.bundle import Bundle
from deepnet.data.tokenizer import EOS, Tokenizers
from deepnet.decoding.batches import pad, plan
from deepnet.decoding.ensemble import Ensemble
from deepnet.decoding.interface import (
    DecodingConfig,
    Hypothesis,
    TranslationModel,
    check_length,
    device_of,
)
from deepnet.decoding.into import KNOWN, Into, into
from deepnet.decoding.scoring import Score, score_tokens
from deepnet.decoding.search import search
from deepnet.errors import ConfigError, DataError

Autocast = Callable[[], AbstractContextManager[object]]
CHUNK_LINES = 1024
"""Lines read before the first of them is translated, so that batches hold sentences of similar length."""


@dataclass(frozen=True)
class Translator:
    """A model, or an ensemble, with the tokenizers of both sides."""

    model: TranslationModel
    tokenizers: Tokenizers
    autocast: Autocast = nullcontext
    """Makes the context in which the model runs: the type of its matrix products, by default that of its weights."""
    into: Into = KNOWN
    """Into which language, of several."""

    @classmethod
    def of(cls, *bundles: Bundle, to: str = "", autocast: Autocast = nullcontext) -> "Translator":
        """Return the translator of a bundle, or of the ensemble of several, of many languages into `to`.

        Raises ConfigError where a bundle cannot translate, or not into `to`, or where an ensemble's tokenizers differ.
        """
        tokenizers = [_tokenizers(bundle) for bundle in bundles]
        for bundle, other in zip(bundles, tokenizers, strict=True):
            if _fingerprints(other) != _fingerprints(tokenizers[0]):
                raise ConfigError(
                    f"{bundle.path} and {bundles[0].path} have different tokenizers; an ensemble"
                    " needs models trained on one and the same"
                )
        models = [bundle.model for bundle in bundles]
        model = models[0] if len(models) == 1 else Ensemble(models)
        return cls(model, tokenizers[0], autocast, into(bundles, to))


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a line."""

    text: str
    """Detokenised."""
    hypothesis: Hypothesis | None
    """Its ids and log-probability; None for a blank line, which no model is asked about."""


def translate(
    model: Bundle | Translator,
    lines: Iterable[str],
    *,
    config: DecodingConfig | None = None,
    chunk_lines: int = CHUNK_LINES,
    to: str = "",
) -> Iterator[str]:
    """Yield the translation of every line, in order; a blank line gives a blank line.

    `to` is the language to translate into, where `model` is a bundle of several; a translator has it already.
    `chunk_lines` is how many lines are read ahead; 1 answers each at once.
    With `n_best` above 1, yield for every line its translations, best first, each as "number ||| text ||| score",
    numbers counting from 0 (Moses' format). Raises DataError, naming the line, where a sentence is too long.
    """
    config = config or DecodingConfig()
    if isinstance(model, Bundle):
        model = Translator.of(model, to=to)
    elif to:
        raise ConfigError(f"this translator has its language; give '{to}' to Translator.of")
    found_lines = translations(model, lines, config=config, chunk_lines=chunk_lines)
    for number, found in enumerate(found_lines):
        if config.n_best == 1:
            yield found[0].text
            continue
        for one in found:
            score = one.hypothesis.score if one.hypothesis else 0.0
            yield f"{number} ||| {one.text} ||| {score:.6f}"


def translations(
    model: Bundle | Translator,
    lines: Iterable[str],
    *,
    config: DecodingConfig,
    chunk_lines: int = CHUNK_LINES,
) -> Iterator[list[Translation]]:
    """Yield the translations of every line, best first, in the order of the lines; see `translate`."""
    translator = model if isinstance(model, Translator) else Translator.of(model)
    stream, first = iter(lines), 0
    while chunk := list(islice(stream, chunk_lines)):
        yield from _translate_chunk(translator, chunk, first, config)
        first += len(chunk)


def score(
    model: Bundle | Translator, pairs: Iterable[tuple[str, str]], *, config: DecodingConfig
) -> Iterator[Score]:
    """Yield the model's score of every pair (source line, target line), in order; see `scoring`.

    Only `length_penalty` and `max_tokens` of `config` matter. Raises DataError where a sentence is too long.
    """
    translator = model if isinstance(model, Translator) else Translator.of(model)
    stream, first = iter(pairs), 0
    while chunk := list(islice(stream, CHUNK_LINES)):
        yield from _score_chunk(translator, chunk, first, config)
        first += len(chunk)


def _translate_chunk(
    translator: Translator, lines: Sequence[str], first: int, config: DecodingConfig
) -> list[list[Translation]]:
    """Translate lines of which the first is number `first` of the text, counted from 0."""
    ids = _sources(translator, lines)
    _check_lengths(ids, first, translator.model.max_positions, config)
    blank = [Translation(text="", hypothesis=None)]
    results = [blank] * len(lines)
    empty = len(translator.into.source) + 1
    wanted = [index for index, line in enumerate(lines) if line.strip() and len(ids[index]) > empty]
    for batch in plan([len(ids[index]) for index in wanted], max_tokens=config.max_tokens):
        places = [wanted[position] for position in batch]
        found = _search(translator, [ids[p] for p in places], [first + p for p in places], config)
        for place, hypotheses in zip(places, found, strict=True):
            results[place] = hypotheses
    return results


def _search(
    translator: Translator,
    sentences: Sequence[Sequence[int]],
    lines: Sequence[int],
    config: DecodingConfig,
) -> list[list[Translation]]:
    padding, device = translator.tokenizers.source.pad, device_of(translator.model)
    source, keep = pad(sentences, padding=padding, device=device)
    with translator.autocast():
        found = search(
            translator.model, source, keep, config=config, lines=lines, start=translator.into.start
        )
    texts = iter(translator.tokenizers.target.decode([h.tokens for hyps in found for h in hyps]))
    return [[Translation(text=next(texts), hypothesis=h) for h in hyps] for hyps in found]


def _score_chunk(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    first: int,
    config: DecodingConfig,
) -> list[Score]:
    tokenizers = translator.tokenizers
    sources = _sources(translator, [source for source, _ in pairs])
    targets = tokenizers.target.encode([target for _, target in pairs])
    lengths = [max(len(s), len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    for ids in (sources, _encode(targets)):
        _check_lengths(ids, first, translator.model.max_positions, config)
    results: list[Score | None] = [None] * len(pairs)
    for batch in plan(lengths, max_tokens=config.max_tokens):
        with translator.autocast():
            found = score_tokens(
                translator.model,
                [sources[index] for index in batch],
                [targets[index] for index in batch],
                source_padding=tokenizers.source.pad,
                length_penalty=config.length_penalty,
                start=translator.into.start,
            )
        for index, one in zip(batch, found, strict=True):
            results[index] = one
    return [one for one in results if one is not None]


def _sources(translator: Translator, lines: Sequence[str]) -> list[list[int]]:
    """Return lines as the encoder reads them: with what asks for a language, and their end."""
    encoded = _encode(translator.tokenizers.source.encode(list(lines)))
    return [[*translator.into.source, *ids] for ids in encoded]


def _encode(sentences: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the sentences with their end."""
    return [[*ids, EOS] for ids in sentences]


def _check_lengths(
    sentences: Sequence[Sequence[int]], first: int, positions: int | None, config: DecodingConfig
) -> None:
    """Raise DataError, naming the line, where a sentence fits neither the model nor a batch."""
    for number, ids in enumerate(sentences, first + 1):
        check_length(len(ids), positions, what=f"line {number:,}")
        if len(ids) > config.max_tokens:
            raise DataError(
                f"line {number:,} has {len(ids):,} tokens with its end, more than the"
                f" {config.max_tokens:,} of decoding.max_tokens; split it, or raise max_tokens"
            )


def _tokenizers(bundle: Bundle) -> Tokenizers:
    if bundle.model.config.architecture != "encoder_decoder":
        raise ConfigError(
            f"{bundle.path} holds a model of the architecture {bundle.model.config.architecture}; only an"
            " encoder_decoder translates"
        )
    if bundle.tokenizers is None:
        raise ConfigError(
            f"{bundle.path} has no tokenizer; save the bundle with one to translate text"
        )
    return bundle.tokenizers


def _fingerprints(tokenizers: Tokenizers) -> tuple[str, str]:
    return tokenizers.source.fingerprint, tokenizers.target.fingerprint
