"""How BLEU splits a text into words: as sacreBLEU does for its language, by characters where there are no spaces.

Chinese, Japanese and Korean have a tokenisation of their own there. Any other text is split at spaces and punctuation
(13a, WMT's), unless most of its letters are of a script that puts no spaces between words: to 13a such a sentence is
one word, and BLEU is 0 unless the whole of it is right.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU

from deepnet.errors import ConfigError, suggest

Tokenization = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char"]
"""sacreBLEU's tokenisations for BLEU, without those that it has to download a model for."""

_OF_LANGUAGE: dict[str, Tokenization] = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_EXTRAS = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}


def choose_tokenization(
    references: Iterable[str],
    *,
    language: str = "",
    report: Callable[[str], None] | None = None,
) -> Tokenization:
    """Return the tokenisation for BLEU against some references, by their language, else by their script.

    Where it needs a package that is not installed, `report` is told which, and it is characters.
    """
    primary = language.lower().replace("_", "-").partition("-")[0]
    chosen = _OF_LANGUAGE.get(primary) or ("char" if _is_unspaced(references) else "13a")
    try:
        check_tokenization(chosen)
    except ConfigError as error:
        if report:
            report(
                f"{error}; until then BLEU is of characters (tok:char), not to be compared with {chosen}"
            )
        return "char"
    return chosen


def check_tokenization(name: str) -> None:
    """Raise ConfigError where there is no tokenisation of that name, or a package for it is not installed."""
    bleu_metric(name)


def bleu_signature(tokenization: str) -> str:
    """Return sacreBLEU's signature of BLEU in a tokenisation, against one reference."""
    metric = bleu_metric(tokenization)
    metric.corpus_score([""], [[""]])
    return str(metric.get_signature())


def recorded_tokenization(signature: str) -> str:
    """Return the tokenisation that a signature of BLEU names, without the version of what does it; "" for none."""
    parts = (part.removeprefix("tok:") for part in signature.split("|") if part.startswith("tok:"))
    found = next(parts, "")
    return next((name for name in _EXTRAS if found.startswith(name)), found)


def bleu_metric(tokenization: str, references: Iterable[str] | None = None) -> BLEU:
    """Return sacreBLEU's BLEU in a tokenisation, and against some references where they are given.

    Raises ConfigError where there is no such tokenisation, or a package for it is not installed.
    """
    names = get_args(Tokenization)
    if tokenization not in names:
        hint = suggest(tokenization, names) or f"; there are {', '.join(names)}"
        raise ConfigError(f"there is no BLEU tokenisation '{tokenization}'{hint}")
    make = partial(BLEU, tokenize=tokenization)
    try:
        return make(references=None if references is None else [list(references)])
    except RuntimeError as error:  # as sacreBLEU says it
        raise ConfigError(
            f"BLEU tokenisation {tokenization} needs a package that is not installed: "
            f"pip install '{_EXTRAS[tokenization]}'"
        ) from error


def _is_unspaced(texts: Iterable[str]) -> bool:
    """Return whether most letters are of a script that puts no spaces between words."""
    letters = Counter(character for text in texts for character in text if character.isalpha())
    unspaced = sum(
        number
        for letter, number in letters.items()
        if unicodedata.name(letter, "").startswith(_UNSPACED)
    )
    return 2 * unspaced > letters.total()
