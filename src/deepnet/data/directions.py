"""Directions of translation between the languages of one corpus, and the token that says into which."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from deepnet.data.corpora import Corpus, check_languages
from deepnet.errors import ConfigError, suggest

Pair = tuple[str, str]
"""Two languages in alphabetical order, whatever is translated into which."""
TagPlacement = Literal["source", "target", "both"]
"""Where the tag of the target language stands: in front of the source, as the decoder's first input, or both."""
ALL, ANY = "all", "*"
"""What stands for every direction there is, and in a direction for any language."""


@dataclass(frozen=True, order=True)
class Direction:
    """A language to translate from, and one to translate into."""

    source: str
    target: str

    def __str__(self) -> str:
        """Return it as recipes and tables write it: "de-en"."""
        return f"{self.source}-{self.target}"

    @property
    def pair(self) -> Pair:
        """The languages in alphabetical order: both directions between them have the same lines."""
        first, second = sorted((self.source, self.target))
        return first, second


def language_tag(language: str) -> str:
    """Return the piece of the vocabulary that asks for a translation into `language`: "<2fr>".

    Source: Johnson et al., Google's Multilingual Neural Machine Translation System, arXiv 1611.04558, section 3.
    """
    return f"<2{language}>"


def find_directions(
    asked: Sequence[str], corpus: Corpus, *, languages: Sequence[str], key: str
) -> tuple[Direction, ...]:
    """Return the directions that `asked` means, such as "de-en", "*-en" or "all", each once, in that order.

    "*" is any of `languages`; the corpus may have more. Raises ConfigError, naming `key`, for what is no direction of
    the corpus.
    """
    found = (direction for text in asked for direction in _meant(text, corpus, languages, key))
    return tuple(dict.fromkeys(found))


def trained_directions(asked: Sequence[str], corpus: Corpus) -> tuple[Direction, ...]:
    """Return what data.pairs means of a corpus; raises ConfigError as `find_directions` does."""
    found = find_directions(asked, corpus, languages=corpus.languages, key="data.pairs")
    if not found:
        raise ConfigError(f"data.pairs = {list(asked)} means no pair of {corpus.name}; name one")
    return found


def zero_shot_directions(
    asked: Sequence[str], corpus: Corpus, trained: Sequence[Direction]
) -> tuple[Direction, ...]:
    """Return what data.zero_shot_pairs means beside the directions that are trained.

    "*" and "all" mean what the languages that are trained leave. Raises ConfigError for a direction that is trained, or
    whose source is never read or whose target is never written in training.
    """
    sources, targets = ({getattr(d, side) for d in trained} for side in ("source", "target"))
    key = "data.zero_shot_pairs"
    found = []
    for text in asked:
        is_open = ANY in text or text == ALL
        meant = find_directions([text], corpus, languages=sorted(sources | targets), key=key)
        if not is_open:
            _check_zero_shot(meant[0], trained, sources, targets)
        found += [
            d for d in meant if d.source in sources and d.target in targets and d not in trained
        ]
    return tuple(dict.fromkeys(found))


def _check_zero_shot(
    direction: Direction, trained: Sequence[Direction], sources: set[str], targets: set[str]
) -> None:
    if direction in trained:
        raise ConfigError(
            f"data.zero_shot_pairs has '{direction}', which data.pairs trains; choose one"
        )
    for language, known, what in (
        (direction.source, sources, "read"),
        (direction.target, targets, "written"),
    ):
        if language not in known:
            raise ConfigError(
                f"data.zero_shot_pairs has '{direction}', but no direction of data.pairs has '{language}' {what}; "
                f"train one, or leave '{direction}' out"
            )


def _meant(text: str, corpus: Corpus, languages: Sequence[str], key: str) -> Iterator[Direction]:
    """Yield the directions that one entry means: exactly one, where it has no "*"."""
    source, target = _sides("*-*" if text == ALL else text, corpus, key)
    if ANY not in (source, target):
        check_languages(corpus, (source, target))
        yield Direction(source, target)
        return
    for first in languages if source == ANY else [source]:
        for second in languages if target == ANY else [target]:
            if first != second and (not corpus.pivot or corpus.pivot in (first, second)):
                yield Direction(first, second)


def _sides(text: str, corpus: Corpus, key: str) -> tuple[str, str]:
    """Return the two languages, or "*", of an entry; a language may itself have a hyphen, such as pt-BR."""
    places = [place for place, character in enumerate(text) if character == "-"]
    cuts = [(text[:place], text[place + 1 :]) for place in places]
    if not cuts:
        raise ConfigError(
            f"{key} has '{text}', which is no direction; write 'de-en', '*-en' or 'all'"
        )
    known = {*corpus.languages, ANY}
    found = next((cut for cut in cuts if known.issuperset(cut)), None)
    return found or _refuse(text, cuts, corpus, key)


def _refuse(
    text: str, cuts: Iterable[tuple[str, str]], corpus: Corpus, key: str
) -> tuple[str, str]:
    """Raise ConfigError that names the language the corpus lacks."""
    known = {*corpus.languages, ANY}
    wrong = min(([side for side in cut if side not in known] for cut in cuts), key=len)
    hint = suggest(wrong[0], corpus.languages) or f"; it has {', '.join(corpus.languages)}"
    raise ConfigError(f"{key} has '{text}', but {corpus.name} has no language '{wrong[0]}'{hint}")
