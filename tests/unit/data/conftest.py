"""A server of files on this machine that can break off, be slow, and continue a file or not; and no offline folder."""

import contextlib
import hashlib
import http.server
import threading

import pytest


@pytest.fixture(autouse=True)
def no_offline_folder(monkeypatch):
    monkeypatch.delenv("DEEPNET_DATA", raising=False)


class FileServer(http.server.ThreadingHTTPServer):
    """Serves what `files` holds and notes each request as (name, Range header)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.broken: set[str] = set()
        """What breaks off after half of what is left."""
        self.continues = True
        """Whether a request for the rest of a file is answered with the rest."""
        self.tags = True
        """Whether an answer says by ETag which version of the file it is of."""
        self.meeting: threading.Barrier | None = None
        """Where every answer waits in the middle for another one, or until the barrier's time is over."""
        self.asked: list[tuple[str, str | None]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self):
        name = self.path.removeprefix("/")
        self.server.asked.append((name, self.headers["Range"]))
        if name not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[name]
        tag = f'"{hashlib.sha256(data).hexdigest()[:8]}"'
        start = self._start(tag)
        if start >= len(data) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.server.tags:
            self.send_header("ETag", tag)
        self._send(data[start:], half=name in self.server.broken)

    def _start(self, tag: str) -> int:
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        if not wanted or not self.server.continues or condition not in (None, tag):
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def _send(self, data: bytes, *, half: bool) -> None:
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        middle = len(data) // 2
        self.wfile.write(data[:middle])
        if self.server.meeting:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.server.meeting.wait()
        if not half:
            self.wfile.write(data[middle:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
