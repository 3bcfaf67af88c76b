"""The corpora deepnet knows by name: what they are, under which licence, and where their files lie on this machine.

A corpus is a folder of `<split>.<language>` or `<split>.<language>.gz` files; line N of a split is the same sentence in
every language, and an empty line means that there is no translation. Where each pair of languages has its own sentences
(`pairwise`), the files lie one folder deeper, in `<first>-<second>` in alphabetical order.
"""

import os
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from deepnet.errors import ConfigError, DataError, suggest

OFFLINE_VARIABLE = "DEEPNET_DATA"
"""The environment variable that names a folder of corpora, looked at before the network."""
CACHE = Path.home() / ".cache" / "deepnet"
"""Where prepared data and downloads are kept unless the caller names another folder."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file to download for a split; see the head of catalogue.toml."""

    split: str
    url: str
    member: str = ""
    format: Literal["lines", "wit3", "segments"] = "lines"
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What is known of a corpus."""

    name: str
    title: str
    languages: tuple[str, ...]
    splits: tuple[str, ...]
    licence: str
    attribution: str
    homepage: str
    builtin: bool = False
    pairwise: bool = False
    pivot: str = ""
    """The language that every pair must contain, where there is one."""
    valid_every: int = 0
    """Every so-manieth line of train belongs to valid instead."""
    parts: tuple[Part, ...] = ()

    @property
    def checksum(self) -> Literal["known", "unknown"] | None:
        """Whether what is downloaded can be checked against the catalogue; None where nothing is downloaded."""
        if not self.parts:
            return None
        return "known" if all(part.sha256 for part in self.parts) else "unknown"

    @property
    def notice(self) -> str:
        """The licence and attribution to show wherever the corpus is used."""
        return f"{self.name}: {self.licence}. {self.attribution} {self.homepage}".rstrip()

    def folder(self, root: Path, languages: tuple[str, ...]) -> Path:
        """Return where the files for a pair of languages, or for one, lie below `root`."""
        folder = root / self.name
        return folder / "-".join(sorted(languages)) if self.pairwise else folder


def list_corpora() -> dict[str, Corpus]:
    """Return every corpus of the catalogue by name."""
    text = (resources.files("deepnet.data") / "catalogue.toml").read_text(encoding="utf-8")
    entries = {name: {"name": name, **entry} for name, entry in tomllib.loads(text).items()}
    return TypeAdapter(dict[str, Corpus]).validate_python(entries)


def find_corpus(name: str) -> Corpus:
    """Return the corpus `name`: of the catalogue, or a folder of that name below DEEPNET_DATA.

    Raises ConfigError, with the nearest name, when there is none.
    """
    known = list_corpora()
    if name in known:
        return known[name]
    offline = offline_folder()
    if offline is not None and name and (offline / name).is_dir():
        return _local_corpus(offline / name)
    hint = suggest(name, known) or f"; known are {', '.join(known)}"
    raise ConfigError(f"there is no corpus '{name}'{hint}")


def check_languages(corpus: Corpus, languages: tuple[str, ...]) -> None:
    """Raise ConfigError when the corpus lacks one of the languages, or does not pair these two.

    One language alone is a text, which a corpus with files for each pair does not have.
    """
    for language in languages:
        if language not in corpus.languages:
            hint = suggest(language, corpus.languages) or f"; it has {', '.join(corpus.languages)}"
            raise ConfigError(f"{corpus.name} has no language '{language}'{hint}")
    if len(languages) == 1:
        _check_has_texts(corpus, languages[0])
        return
    if languages[0] == languages[1]:
        raise ConfigError(f"source and target language are both '{languages[0]}'; give two")
    if corpus.pivot and corpus.pivot not in languages:
        raise ConfigError(
            f"{corpus.name} pairs every language with '{corpus.pivot}' only, not "
            f"'{languages[0]}' with '{languages[1]}'; use '{corpus.pivot}' on one side"
        )


def _check_has_texts(corpus: Corpus, language: str) -> None:
    if corpus.pairwise:
        raise ConfigError(
            f"{corpus.name} has a text of '{language}' for each pair of languages, not one of them all; fetch a pair "
            f"with 'deepnet data get {corpus.name} ...' and give its file as data.train_text"
        )


def offline_folder() -> Path | None:
    """Return the folder named by DEEPNET_DATA; raises ConfigError when it does not exist."""
    value = os.environ.get(OFFLINE_VARIABLE, "")
    if value and not Path(value).is_dir():
        raise ConfigError(
            f"{OFFLINE_VARIABLE} is '{value}', which is not a folder; correct or unset it"
        )
    return Path(value) if value else None


def builtin_folder() -> Path:
    """Return the folder of the corpora that come with the package."""
    return Path(str(resources.files("deepnet.data") / "builtin"))


def find_folder(corpus: Corpus, languages: tuple[str, ...], *, downloads: Path) -> Path | None:
    """Return the first folder that has the corpus: built in, below DEEPNET_DATA, or downloaded before."""
    roots = [builtin_folder()] if corpus.builtin else [offline_folder(), downloads]
    for root in roots:
        folder = None if root is None else corpus.folder(root, languages)
        if folder is not None and all(_file(folder, "train", language) for language in languages):
            return folder
    return None


def split_file(folder: Path, split: str, language: str) -> Path:
    """Return the file of a split in a language; raises DataError, naming the splits there are, when it is missing."""
    if found := _file(folder, split, language):
        return found
    splits = sorted(
        {path.name.split(".")[0] for path in _text_files(folder) if _language(path) == language}
    )
    hint = suggest(split, splits) or f"; there are {', '.join(splits) or 'none'}"
    raise DataError(f"{folder} has no split '{split}' in '{language}'{hint}")


def _file(folder: Path, split: str, language: str) -> Path | None:
    paths = (folder / f"{split}.{language}", folder / f"{split}.{language}.gz")
    return next((path for path in paths if path.is_file()), None)


def _text_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file() and "." in path.name]


def _language(path: Path) -> str:
    return path.name.removesuffix(".gz").partition(".")[2]


def _local_corpus(folder: Path) -> Corpus:
    files = _text_files(folder)
    return Corpus(
        name=folder.name,
        title=f"Files in {folder}",
        languages=tuple(
            sorted({_language(path) for path in files if path.name.startswith("train.")})
        ),
        splits=tuple(sorted({path.name.partition(".")[0] for path in files})),
        licence="licence not known to deepnet",
        attribution=f"See {folder}.",
        homepage="",
    )
