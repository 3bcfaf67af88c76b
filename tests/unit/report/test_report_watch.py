"""The served page: news only where there are some, this machine only, a clear word where the port is taken."""

import html
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_runs import make_run

from deepnet.errors import ConfigError, DeepNetError
from deepnet.lock import is_locked, locked_folder
from deepnet.report.records import RecordFile
from deepnet.report.watch import ReportServer, WatchedRuns


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "<b>a", layers=2, finished=False)


@pytest.fixture
def watched(run: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedRuns:
    monkeypatch.setattr("deepnet.report.watch.REST", 0.0)
    return WatchedRuns([run])


@pytest.fixture
def server(watched: WatchedRuns) -> Iterator[ReportServer]:
    with ReportServer(watched, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_news_come_once(run: Path, watched: WatchedRuns) -> None:
    version = watched.latest()[1]["version"]
    assert watched.news(version) is None
    append(run / "metrics.jsonl", '{"step": 50, "loss": 1.25}\n')
    news = watched.news(version)
    assert news is not None
    assert news["data"]["lines"]["loss"]["series"][0]["values"][-1] == 1.25
    assert "50 updates" in news["main"]
    assert watched.news(news["data"]["live"]["version"]) is None


def test_a_long_look_is_followed_by_a_rest(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepnet.report.watch.REST", 1e6)
    watched = WatchedRuns([run])
    version = watched.latest()[1]["version"]
    append(run / "metrics.jsonl", '{"step": 50, "loss": 1.25}\n')
    assert watched.news(version) is None


def test_a_page_knows_whether_the_run_goes_on(run: Path, watched: WatchedRuns) -> None:
    assert watched.latest()[1]["going_on"] is False
    with locked_folder(run):
        assert is_locked(run)
        assert watched.latest()[1]["going_on"] is True
    assert not is_locked(run)
    assert not is_locked(run / "nowhere")
    assert watched.latest()[1]["going_on"] is False


def test_the_server_gives_the_page_and_news(server: ReportServer) -> None:
    status, page = get(server.url)
    assert status == 200
    assert "connect-src 'self'" in html.unescape(page.decode())
    status, news = get(f"{server.url}live.json")
    assert status == 200
    version = json.loads(news)["data"]["live"]["version"]
    assert get(f"{server.url}live.json?seen={version}") == (204, b"")
    assert get(f"{server.url}recipe.json")[0] == 404


def test_only_this_machine_is_answered(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server.url, Host="evil.example")[0] == 403


def test_a_port_in_use_is_said(server: ReportServer, watched: WatchedRuns) -> None:
    port = server.server_port
    with pytest.raises(DeepNetError, match=f"port {port} of this machine: .*--port 0"):
        ReportServer(watched, port=port)


def test_a_recipe_damaged_meanwhile_is_said_not_shown(run: Path, server: ReportServer) -> None:
    (run / "recipe.json").write_text("{")
    status, text = get(f"{server.url}live.json?seen=")
    assert status == 500
    assert b"recipe.json is not JSON" in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        WatchedRuns([tmp_path])


def test_a_growing_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make: Callable[[dict], int] = lambda record: made.append(record["step"]) or record["step"]  # noqa: E731
    path = tmp_path / "metrics.jsonl"
    file = RecordFile(path, make)
    with pytest.raises(FileNotFoundError):
        file.read()
    append(path, '{"step": 1}\n{"step": 2}\n{"st')
    assert file.read() == [1, 2]
    append(path, 'ep": 3}\nnonsense\n')
    assert file.read() == [1, 2, 3]
    assert made == [1, 2, 3]
    assert file.damaged == 1
    (tmp_path / "new").write_text('{"step": 1}\n')
    (tmp_path / "new").replace(path)  # as a resumed run cuts its records
    assert file.read() == [1]
    assert file.damaged == 0
