"""Which files a recipe's data section means: a corpus known by name, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.data.corpora import find_corpus, split_file
from deepnet.data.download import get_corpus

PAIR, TEXT = ("source", "target"), ("text",)
"""The sides of a row: of sentences with their translations, and of one text."""
FILE_FIELDS = tuple(
    f"{part}_{side}" for part in ("train", "valid", "test") for side in (*PAIR, *TEXT)
)


class DataConfig(Section):
    """The text to learn from: `corpus`, or files of one's own, plain or gzip, one sentence per line.

    A translator (model.architecture "encoder_decoder") learns from sentences with their translations, the two other
    architectures from one text: `language` of a corpus, or `train_text`.
    """

    corpus: str = ""
    """Name of a corpus (`deepnet data list`), or of a folder below DEEPNET_DATA; empty: use the files."""
    source_language: str = "source"
    """Language to translate from; for files of one's own any name."""
    target_language: str = "target"
    """Language to translate into; for files of one's own any name."""
    language: str = ""
    """One text: its language, in place of a source and a target language; for a file of one's own any name."""
    train_source: str = ""
    """Path of the source sentences to train on."""
    train_target: str = ""
    """Path of their translations, line by line."""
    valid_source: str = ""
    """Path of the validation part's source sentences; empty: split off the training part."""
    valid_target: str = ""
    """Path of the validation part's translations."""
    test_source: str = ""
    """Path of the test part's source sentences; empty: split off the training part."""
    test_target: str = ""
    """Path of the test part's translations."""
    train_text: str = ""
    """Path of one text to train on, in place of sentences with translations."""
    valid_text: str = ""
    """Path of one text's validation part; empty: split off the training part."""
    test_text: str = ""
    """Path of one text's test part; empty: split off the training part."""
    valid_split: str = "valid"
    """The corpus's split to validate on; empty: split off the training part."""
    test_split: str = "test"
    """The corpus's split to test on; empty: split off the training part."""
    valid_pairs: Annotated[int, Field(ge=1)] = 2000
    """Most pairs, or lines of one text, of a validation part split off (at most a twentieth of the corpus)."""
    test_pairs: Annotated[int, Field(ge=1)] = 2000
    """Most pairs, or lines of one text, of a test part split off (at most a twentieth of the corpus)."""
    max_sentence_tokens: Annotated[int, Field(ge=2)] = 256
    """Longest sentence kept, in tokens with eos; lines with a longer one are left out and counted."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        changed = self.model_dump(exclude_defaults=True)
        given = [name for name in FILE_FIELDS if name in changed]
        if self.corpus and given:
            raise ValueError(f"'{given[0]}' and 'corpus' are both given; choose one")
        pair, text = ([name for name in _keys(sides) if name in changed] for sides in (PAIR, TEXT))
        if pair and text:
            raise ValueError(
                f"'{text[0]}' means one text, but '{pair[0]}' sentences with translations; choose one"
            )
        if not self.corpus:
            self._check_files()
        if self.source_language == self.target_language:
            raise ValueError(
                f"'source_language' and 'target_language' are both '{self.source_language}'"
            )
        return self

    def _check_files(self) -> None:
        changed = self.model_dump(exclude_defaults=True)
        if ignored := [name for name in ("valid_split", "test_split") if name in changed]:
            raise ValueError(f"'{ignored[0]}' has no effect without 'corpus'; remove it")
        if not self.train_text and not (self.train_source and self.train_target):
            raise ValueError(
                "give 'corpus', or both 'train_source' and 'train_target', or 'train_text'"
            )
        if bool(self.valid_source) != bool(self.valid_target):
            raise ValueError("give both 'valid_source' and 'valid_target', or neither")
        if bool(self.test_source) != bool(self.test_target):
            raise ValueError("give both 'test_source' and 'test_target', or neither")

    @property
    def sides(self) -> tuple[str, ...]:
        """What a row consists of: "source" and "target", or "text"."""
        return TEXT if self.language or self.train_text else PAIR

    @property
    def languages(self) -> tuple[str, ...]:
        """The language of each side."""
        if self.sides == PAIR:
            return self.source_language, self.target_language
        return (self.language or "text",)

    @property
    def unit(self) -> str:
        """What rows are called when they are counted."""
        return "pairs" if self.sides == PAIR else "lines"


@dataclass(frozen=True)
class Sources:
    """The files of each part that is given ("train" always is), one per side, and the notice to show with them."""

    name: str
    notice: str
    parts: dict[str, tuple[Path, ...]]


def find_sources(config: DataConfig, *, downloads: Path, report: Callable[[str], None]) -> Sources:
    """Return the files that `config` means, downloading a corpus into `downloads` when it is not on this machine.

    Raises ConfigError or DataError for an unknown corpus, language or split. Files of the user's own are not read.
    """
    if not config.corpus:
        parts = _own_files(config)
        return Sources(name=parts["train"][0].name, notice="", parts=parts)
    corpus = find_corpus(config.corpus)
    report(corpus.notice)
    folder = get_corpus(corpus, config.languages, downloads=downloads, report=report)
    names = {"train": "train", "valid": config.valid_split, "test": config.test_split}
    parts = {
        part: tuple(split_file(folder, split, language) for language in config.languages)
        for part, split in names.items()
        if split
    }
    return Sources(name=corpus.name, notice=corpus.notice, parts=parts)


def _own_files(config: DataConfig) -> dict[str, tuple[Path, ...]]:
    given = config.model_dump()
    files = {
        part: [given[f"{part}_{side}"] for side in config.sides]
        for part in ("train", "valid", "test")
    }
    return {part: tuple(map(Path, paths)) for part, paths in files.items() if any(paths)}


def _keys(sides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that mean text of these sides."""
    languages = ("source_language", "target_language") if sides == PAIR else ("language",)
    return (*languages, *(name for name in FILE_FIELDS if name.partition("_")[2] in sides))
