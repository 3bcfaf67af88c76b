"""Fetching a corpus of the catalogue: from this machine if it is here, else over the network.

Archives are kept until the corpus is complete, and what has arrived of one beside them, so that an interrupted
download goes on where it stopped. Who fetches a corpus has its lock meanwhile; others wait and find it there. From an
archive only the named members are read, as streams: no path of the archive is ever written to.
"""

import gzip
import hashlib
import html
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from io import BufferedReader
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from deepnet.data.corpora import (
    OFFLINE_VARIABLE,
    Corpus,
    Part,
    check_languages,
    find_folder,
)
from deepnet.data.text import decode_lines
from deepnet.data.transfer import transfer
from deepnet.errors import DataError
from deepnet.lock import locked_folder
from deepnet.record import atomic_folder
from deepnet.seal import file_sha256

Report = Callable[[str], None]
"""Takes each message for the user as it comes."""

_SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.IGNORECASE)
_KEPT_TAGS = re.compile(r"</?(title|description)>")
"""Lines of a WIT3 file that are text; other lines that start with a tag describe the talk."""


def get_corpus(
    corpus: Corpus,
    languages: tuple[str, ...],
    *,
    downloads: Path,
    report: Report,
) -> Path:
    """Return the folder with the corpus's files for two languages or one, downloading it into `downloads` when needed.

    Raises ConfigError for a language the corpus lacks and DataError when it cannot be downloaded or is not what the
    catalogue says.
    """
    check_languages(corpus, languages)
    found = find_folder(corpus, languages, downloads=downloads)
    if found is not None:
        return found
    if not corpus.parts:
        raise DataError(f"{corpus.name} has no train part in {' and '.join(languages)}")
    archives = corpus.folder(downloads / "archives", languages)
    try:
        archives.mkdir(parents=True, exist_ok=True)
        with locked_folder(archives, wait=report):
            found = find_folder(corpus, languages, downloads=downloads)
            return found or _download(corpus, languages, downloads, archives, report)
    except OSError as error:
        folder = corpus.folder(downloads, languages)
        raise DataError(f"cannot write {folder}: {error.strerror or error}; make room") from error


def _download(
    corpus: Corpus, languages: tuple[str, ...], downloads: Path, archives: Path, report: Report
) -> Path:
    """Write the files of a corpus from its archives, which are deleted afterwards."""
    folder = corpus.folder(downloads, languages)
    wanted = corpus.languages if not corpus.pairwise else languages
    with atomic_folder(folder) as new:
        for language in wanted:
            _write_language(corpus, language, languages, archives, new, report)
    for archive in archives.iterdir():
        if archive.is_dir():
            shutil.rmtree(archive)
    return folder


def fetch(url: str, *, path: Path, report: Report, sha256: str | None = None) -> None:
    """Put what is at `url` under `path`, unless it is there; whoever asks for it meanwhile waits.

    What has arrived when a download breaks off is kept beside `path`, and the next call goes on from there. Raises
    DataError when it fails, or when the sum of what lies on the disk differs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.parent, wait=report):
        if not path.exists():
            _fetch(url, path, report, sha256)


def _fetch(url: str, path: Path, report: Report, sha256: str | None) -> None:
    report(f"downloading {url}")
    partial = path.with_name(path.name + ".partial")
    try:
        transfer(url, partial, report)
        digest = file_sha256(partial)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"cannot download {url}: {error}; to work offline, put the corpus into a folder and "
            f"name that folder in {OFFLINE_VARIABLE}"
        ) from error
    if sha256 is not None and digest != sha256:
        partial.unlink()
        raise DataError(f"{url} has the sha256 {digest} instead of {sha256}; it was not kept")
    if sha256 is None:
        report(f"no checksum is known for it; its sha256 is {digest}")
    partial.replace(path)


def _write_language(
    corpus: Corpus,
    language: str,
    pair: tuple[str, ...],
    archives: Path,
    folder: Path,
    report: Report,
) -> None:
    """Write every split of one language as `<split>.<language>.gz`."""
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(_create(folder / f"{split}.{language}.gz"))
            for split in corpus.splits
        }
        for split in corpus.splits:
            lines = _split_lines(corpus, split, language, pair, archives, report)
            for number, line in enumerate(lines, 1):
                held_out = (
                    split == "train" and corpus.valid_every and number % corpus.valid_every == 0
                )
                files["valid" if held_out else split].write(f"{line}\n".encode())


def _create(path: Path) -> gzip.GzipFile:
    """Open a gzip file for writing; no time stamp, so that the same text gives the same bytes."""
    return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)


def _split_lines(
    corpus: Corpus,
    split: str,
    language: str,
    pair: tuple[str, ...],
    archives: Path,
    report: Report,
) -> Iterator[str]:
    for part in corpus.parts:
        if part.split != split:
            continue
        names = {"language": language, "pair": "-".join(sorted(pair))}
        url = part.url.format(**names)
        # Parts of different languages may have the same file name on the server; their whole addresses differ.
        address = hashlib.sha256(url.encode()).hexdigest()[:8]
        archive = archives / address / Path(urlsplit(url).path).name
        fetch(url, path=archive, sha256=part.sha256, report=report)
        with open_member(archive, part.member.format(**names)) as stream:
            yield from _text(stream, part, archive)


@contextmanager
def open_member(archive: Path, member: str) -> Iterator[BufferedReader | zipfile.ZipExtFile]:
    """Yield the stream of a member of a tar or zip archive, or of the file itself when `member` is empty.

    Raises DataError when the archive is damaged or has no such regular file.
    """
    try:
        if not member:
            with open(archive, "rb") as file:
                yield file
        elif zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped, zipped.open(member) as file:
                yield cast(zipfile.ZipExtFile, file)
        else:
            with tarfile.open(archive) as tar, _tar_member(tar, member) as file:
                yield file
    except KeyError as error:
        raise DataError(
            f"{archive} has no file {member}; it is not the archive expected"
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{archive} is damaged ({error}); delete it and fetch it again") from error


def _tar_member(tar: tarfile.TarFile, member: str) -> BufferedReader:
    for entry in tar:
        if entry.isreg() and entry.name.removeprefix("./") == member:
            stream = tar.extractfile(entry)
            assert isinstance(stream, BufferedReader), "a regular file has a buffered stream"
            return stream
    raise KeyError(member)


def _text(stream: BufferedReader | zipfile.ZipExtFile, part: Part, archive: Path) -> Iterator[str]:
    """Yield the sentences of one downloaded file."""
    for line in decode_lines(stream, name=f"{archive.name}:{part.member}"):
        if part.format == "segments":
            yield from (html.unescape(text).strip() for text in _SEGMENT.findall(line))
        elif part.format == "lines" or not line.lstrip().startswith("<"):
            yield line
        elif _KEPT_TAGS.match(line.lstrip()):
            yield _KEPT_TAGS.sub("", line).strip()
