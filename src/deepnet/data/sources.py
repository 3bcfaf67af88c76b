"""Which files a recipe's data section means: a corpus known by name, or the user's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from deepnet.config import Section
from deepnet.data.corpora import Corpus, find_corpus, split_file
from deepnet.data.directions import (
    Direction,
    Pair,
    TagPlacement,
    trained_directions,
    zero_shot_directions,
)
from deepnet.data.download import get_corpus

PAIR, TEXT = ("source", "target"), ("text",)
"""The sides of a row: of sentences with their translations, and of one text."""
FILE_FIELDS = tuple(
    f"{part}_{side}" for part in ("train", "valid", "test") for side in (*PAIR, *TEXT)
)
_SPLITS = ("valid_split", "test_split")
_OF_PAIRS = ("zero_shot_pairs", "language_tag", "sampling_temperature")
"""What means something beside `pairs` only."""
_NOT_OF_PAIRS = ("source_language", "target_language", "language", "valid_pairs", "test_pairs")


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
    pairs: tuple[str, ...] = ()
    """Many directions of one corpus in place of one: "de-en", with "*" for any language, or "all"; a line without a
    translation (an empty one) is left out of a pair."""
    zero_shot_pairs: tuple[str, ...] = ()
    """Directions that are tested but not trained, written as in `pairs`; "all": what its languages leave."""
    language_tag: TagPlacement = "source"
    """Where the token stands that says into which language: in front of the source, as the decoder's first input, or
    both."""
    sampling_temperature: Annotated[float, Field(gt=0)] = 5.0
    """How evenly an epoch draws from directions of n pairs: shares as n^(1/T); 1 takes each pair once."""
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

    @field_validator("pairs", "zero_shot_pairs", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) and given else given

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        changed = self.model_dump(exclude_defaults=True)
        self._check_pairs(changed)
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

    def _check_pairs(self, changed: Mapping[str, Any]) -> None:
        """Refuse what has no effect with many directions, or without."""
        if not self.pairs:
            if ignored := [name for name in _OF_PAIRS if name in changed]:
                raise ValueError(f"'{ignored[0]}' has no effect without 'pairs'; remove it")
            return
        if not self.corpus:
            raise ValueError("'pairs' are of the languages of a 'corpus'; name it")
        if ignored := [name for name in _NOT_OF_PAIRS if name in changed]:
            raise ValueError(f"'{ignored[0]}' has no effect with 'pairs'; remove it")
        if missing := [name for name in _SPLITS if not getattr(self, name)]:
            raise ValueError(
                f"'{missing[0]}' is empty, but nothing can be split off many 'pairs': name the corpus's split"
            )

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
    def tags_source(self) -> bool:
        """Whether every source begins with the tag of its target language."""
        return bool(self.pairs) and self.language_tag in ("source", "both")

    @property
    def tags_decoder(self) -> bool:
        """Whether the decoder starts from the tag of the target language."""
        return bool(self.pairs) and self.language_tag in ("target", "both")

    def of_pair(self, pair: Pair) -> "DataConfig":
        """Return the section of one pair of the many; a tag in front of its sentences fits in."""
        alone = {"source_language": pair[0], "target_language": pair[1]}
        neutral = {key: type(self).model_fields[key].default for key in ("pairs", *_OF_PAIRS)}
        longest = self.max_sentence_tokens - int(self.tags_source)
        return self.model_copy(update={**alone, **neutral, "max_sentence_tokens": longest})

    def deciding(self) -> dict[str, Any]:
        """Return what decides how text is prepared, without the paths of files; as it was before there were `pairs`."""
        idle = {"sampling_temperature"} if self.pairs else {"pairs", *_OF_PAIRS}
        return self.model_dump(exclude={*FILE_FIELDS, *idle})

    @property
    def unit(self) -> str:
        """What rows are called when they are counted."""
        return "pairs" if self.sides == PAIR else "lines"


Parts = dict[str, tuple[Path, ...]]
"""The files of each part that is given ("train" always is), one per side."""


@dataclass(frozen=True)
class Sources:
    """The files of a text, and the notice to show with them."""

    name: str
    notice: str
    parts: Parts
    """Empty where there are many pairs."""
    pairs: dict[Pair, Parts] = field(default_factory=dict)
    """The files of each of many pairs, the languages in alphabetical order."""
    directions: tuple[Direction, ...] = ()
    """The directions to train on, where there are many."""
    zero_shot: tuple[Direction, ...] = ()
    """Those to test on besides."""

    @property
    def languages(self) -> list[str]:
        """The languages of many pairs, in alphabetical order."""
        return sorted({language for pair in self.pairs for language in pair})

    def inputs(self, sides: tuple[str, ...]) -> dict[str, Path]:
        """Return every file by what it is for; of many pairs by folder and name, as pairs share files."""
        one = {
            f"{part}_{side}": file
            for part, files in self.parts.items()
            for side, file in zip(sides, files, strict=True)
        }
        many = (file for parts in self.pairs.values() for files in parts.values() for file in files)
        return one | {f"{file.parent.name}/{file.name.removesuffix('.gz')}": file for file in many}


def find_sources(config: DataConfig, *, downloads: Path, report: Callable[[str], None]) -> Sources:
    """Return the files that `config` means, downloading a corpus into `downloads` when it is not on this machine.

    Raises ConfigError or DataError for an unknown corpus, language or split. Files of the user's own are not read.
    """
    if not config.corpus:
        parts = _own_files(config)
        return Sources(name=parts["train"][0].name, notice="", parts=parts)
    corpus = find_corpus(config.corpus)
    report(corpus.notice)
    found = Sources(name=corpus.name, notice=corpus.notice, parts={})
    if not config.pairs:
        own = _parts(config, corpus, config.languages, downloads, report)
        return replace(found, parts=own)
    directions = trained_directions(config.pairs, corpus)
    zero_shot = zero_shot_directions(config.zero_shot_pairs, corpus, directions)
    pairs = sorted({direction.pair for direction in (*directions, *zero_shot)})
    return replace(
        found,
        pairs={pair: _parts(config, corpus, pair, downloads, report) for pair in pairs},
        directions=directions,
        zero_shot=zero_shot,
    )


def _parts(
    config: DataConfig,
    corpus: Corpus,
    languages: tuple[str, ...],
    downloads: Path,
    report: Callable[[str], None],
) -> Parts:
    folder = get_corpus(corpus, languages, downloads=downloads, report=report)
    names = {"train": "train", "valid": config.valid_split, "test": config.test_split}
    return {
        part: tuple(split_file(folder, split, language) for language in languages)
        for part, split in names.items()
        if split
    }


def _own_files(config: DataConfig) -> Parts:
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
