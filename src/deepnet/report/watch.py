"""A report served on this machine while runs go on: the page asks for news, and is told what changed."""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deepnet.errors import DeepNetError
from deepnet.lock import is_locked
from deepnet.report.folder import readers_of
from deepnet.report.page import Report, main_of, page_of, report_data

HOST = "127.0.0.1"
"""Only this machine is served."""
REST = 4.0
"""How long nothing is looked at after a look, in lengths of that look: a long run loses little to its report."""
_FILES = ("recipe.json", "environment.json", "metrics.jsonl", "probes.jsonl", "incidents.jsonl")
_FOLDERS = ("outputs", "incidents", "bundle", "checkpoints")


class WatchedRuns:
    """Run folders that are read again when something in them has changed."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        """Raise ConfigError for a folder that holds no run."""
        self._readers = readers_of(folders)
        self._lock = Lock()
        self._rest_until = 0.0
        self._look()

    def latest(self) -> tuple[Report, dict[str, Any]]:
        """Return what is there now, and what a page says of it: version, when it last changed, whether it goes on."""
        with self._lock:
            if monotonic() >= self._rest_until and self._fingerprint() != self._version:
                self._look()
            return self._report, {
                "version": self._version,
                "updated": self._updated.isoformat(),
                "going_on": any(run.is_going_on for run in self._report.runs),
            }

    def _look(self) -> None:
        start = monotonic()
        self._version = self._fingerprint()
        self._report = Report.of([reader.read() for reader in self._readers])
        self._updated = datetime.now(UTC)
        self._rest_until = monotonic() + REST * (monotonic() - start)

    def page(self) -> str:
        """Return the whole page."""
        report, state = self.latest()
        return page_of(report, live=state)

    def news(self, seen: str) -> dict[str, Any] | None:
        """Return what a page that has seen one version has to show now, None where that is the latest."""
        report, state = self.latest()
        if state["version"] == seen:
            return None
        return {"main": main_of(report), "data": {**report_data(report), "live": state}}

    def _fingerprint(self) -> str:
        """Return a name for the state of all files: their sizes and times, and whether a process writes the run."""
        state: list[object] = []
        for folder in (reader.path for reader in self._readers):
            paths = [folder / name for name in _FILES]
            for name in _FOLDERS:
                paths += sorted((folder / name).glob("*"))
            for path in paths:
                if path.exists():
                    status = path.stat()
                    state.append((str(path), status.st_size, status.st_mtime_ns))
            state.append(is_locked(folder))
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


class ReportServer(ThreadingHTTPServer):
    """Serves the page of some runs and its news, to this machine alone."""

    daemon_threads = True

    def __init__(self, runs: WatchedRuns, *, port: int) -> None:
        """Raise DeepNetError where the port is taken; port 0 takes a free one."""
        self.runs = runs
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise DeepNetError(
                f"cannot serve on port {port} of this machine: {error.strerror}; choose another with --port, "
                "or --port 0 for any that is free"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers / with the page and /live.json with what changed since the version that was seen."""

    server: ReportServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one request; a name other than this machine's own, as a hostile page would use, is refused."""
        if self.headers.get("Host") not in self._own_names():
            self._send(HTTPStatus.FORBIDDEN)
            return
        address = urlsplit(self.path)
        try:
            if address.path == "/":
                self._send_page()
            elif address.path == "/live.json":
                self._send_news(parse_qs(address.query).get("seen", [""])[0])
            else:
                self._send(HTTPStatus.NOT_FOUND)
        except DeepNetError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, str(error).encode(), "text/plain")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing: the questions of an open page would fill the terminal."""

    def _own_names(self) -> set[str]:
        return {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}

    def _send_page(self) -> None:
        self._send(HTTPStatus.OK, self.server.runs.page().encode(), "text/html")

    def _send_news(self, seen: str) -> None:
        news = self.server.runs.news(seen)
        if news is None:
            self._send(HTTPStatus.NO_CONTENT)
        else:
            body = json.dumps(news, allow_nan=False, separators=(",", ":")).encode()
            self._send(HTTPStatus.OK, body, "application/json")

    def _send(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
