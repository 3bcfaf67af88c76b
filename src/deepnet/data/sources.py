"""Which files a recipe's data section means: a corpus known by name, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.data.corpora import find_corpus, split_file
from deepnet.data.download import get_corpus

FILE_FIELDS = (
    "train_source", "train_target", "valid_source", "valid_target", "test_source", "test_target",
)  # fmt: skip


class DataConfig(Section):
    """The text to learn from: `corpus`, or files of one's own, plain or gzip, one sentence per line."""

    corpus: str = ""
    """Name of a corpus (`deepnet data list`), or of a folder below DEEPNET_DATA; empty: use the files."""
    source_language: str = "source"
    """Language to translate from; for files of one's own any name."""
    target_language: str = "target"
    """Language to translate into; for files of one's own any name."""
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
    valid_split: str = "valid"
    """The corpus's split to validate on; empty: split off the training part."""
    test_split: str = "test"
    """The corpus's split to test on; empty: split off the training part."""
    valid_pairs: Annotated[int, Field(ge=1)] = 2000
    """Most pairs of a validation part split off (at most a twentieth of the corpus)."""
    test_pairs: Annotated[int, Field(ge=1)] = 2000
    """Most pairs of a test part split off (at most a twentieth of the corpus)."""
    max_sentence_tokens: Annotated[int, Field(ge=2)] = 256
    """Longest sentence kept, in tokens with eos; pairs with a longer one are left out and counted."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        given = [name for name in self.model_dump(exclude_defaults=True) if name in FILE_FIELDS]
        if self.corpus and given:
            raise ValueError(f"'{given[0]}' and 'corpus' are both given; choose one")
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
        if not (self.train_source and self.train_target):
            raise ValueError("give 'corpus', or both 'train_source' and 'train_target'")
        if bool(self.valid_source) != bool(self.valid_target):
            raise ValueError("give both 'valid_source' and 'valid_target', or neither")
        if bool(self.test_source) != bool(self.test_target):
            raise ValueError("give both 'test_source' and 'test_target', or neither")

    @property
    def languages(self) -> tuple[str, str]:
        """The source and the target language."""
        return self.source_language, self.target_language


@dataclass(frozen=True)
class TextPair:
    """Two files whose lines are translations of each other."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Sources:
    """The files of each part that is given ("train" always is), and the notice to show with them."""

    name: str
    notice: str
    parts: dict[str, TextPair]


def find_sources(config: DataConfig, *, downloads: Path, report: Callable[[str], None]) -> Sources:
    """Return the files that `config` means, downloading a corpus into `downloads` when it is not on this machine.

    Raises ConfigError or DataError for an unknown corpus, language or split. Files of the user's own are not read.
    """
    if not config.corpus:
        return Sources(name=Path(config.train_source).name, notice="", parts=_own_files(config))
    corpus = find_corpus(config.corpus)
    report(corpus.notice)
    folder = get_corpus(corpus, config.languages, downloads=downloads, report=report)
    names = {"train": "train", "valid": config.valid_split, "test": config.test_split}
    parts = {
        part: TextPair(*(split_file(folder, split, language) for language in config.languages))
        for part, split in names.items()
        if split
    }
    return Sources(name=corpus.name, notice=corpus.notice, parts=parts)


def _own_files(config: DataConfig) -> dict[str, TextPair]:
    files = {
        "train": (config.train_source, config.train_target),
        "valid": (config.valid_source, config.valid_target),
        "test": (config.test_source, config.test_target),
    }
    return {part: TextPair(Path(s), Path(t)) for part, (s, t) in files.items() if s}
