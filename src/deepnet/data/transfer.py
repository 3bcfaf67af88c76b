"""Bytes over the network into a file, going on where an earlier try broke off.

A file is continued only when the server says that it is still the same one: by the ETag or date of the first answer,
kept beside it and sent with the request for the rest (If-Range, RFC 9110, section 13.1.5).
"""

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.response import addinfourl

_CHUNK_BYTES = 1 << 20
_REPORT_BYTES = 50 << 20
_TIMEOUT_SECONDS = 60
_CONTINUED = 206
_NOTHING_LEFT = 416


def transfer(url: str, path: Path, report: Callable[[str], None]) -> None:
    """Complete `path`, which nobody else may write to meanwhile, with what is at `url`.

    Raises OSError or HTTPException when it breaks off; what has arrived then stays for the next call.
    """
    version = path.with_suffix(path.suffix + ".version")
    with _open(url, path, version) as response:
        if response.status != _CONTINUED:
            path.unlink(
                missing_ok=True
            )  # first: no other file's beginning may stand beside this version
            _note_version(version, response)
        with path.open("ab") as file:
            length = response.headers.get("Content-Length")
            total = file.tell() + int(length) if length else None
            done = _copy(response, file, total, report)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done != total:
        later = "; the next try goes on from there" if version.exists() else ""
        raise OSError(f"it broke off after {done:,} of {total:,} bytes{later}")
    version.unlink(missing_ok=True)


def _open(url: str, path: Path, version: Path) -> addinfourl:
    """Ask for what is missing of `path`, or for everything where that is not certain to fit."""
    request = urllib.request.Request(url)
    done = path.stat().st_size if path.exists() and version.exists() else 0
    if done:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", version.read_text("utf-8"))
    try:
        response: addinfourl = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except HTTPError as error:
        if not done or error.code != _NOTHING_LEFT:
            raise
        version.unlink()
        return _open(url, path, version)
    if response.status == _CONTINUED and not _continues(response, done):
        response.close()
        version.unlink()
        return _open(url, path, version)
    return response


def _continues(response: addinfourl, done: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {done}-")


def _note_version(path: Path, response: addinfourl) -> None:
    """Keep what says which version of the file an answer is of, as far as it can be relied on."""
    tag, date = (response.headers.get(name) for name in ("ETag", "Last-Modified"))
    said = date if tag is None or tag.startswith("W/") else tag
    if said:
        path.write_text(said, "utf-8")
    else:
        path.unlink(missing_ok=True)


def _copy(
    source: addinfourl, target: IO[bytes], total: int | None, report: Callable[[str], None]
) -> int:
    """Append a stream to a file and return how long that is then."""
    done = target.tell()
    while chunk := source.read(_CHUNK_BYTES):
        target.write(chunk)
        done += len(chunk)
        if done // _REPORT_BYTES > (done - len(chunk)) // _REPORT_BYTES:
            report(f"{done / 1e6:,.0f} MB" + (f" of {total / 1e6:,.0f} MB" if total else ""))
    return done
