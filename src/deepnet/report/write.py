"""The report as a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnet.errors import ConfigError
from deepnet.record import atomic_write
from deepnet.report.folder import read_runs
from deepnet.report.page import Report, page_of


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """What was written."""

    path: Path
    num_bytes: int
    names: list[str]
    """The runs, as the page calls them."""
    notes: list[str]
    """What is missing or damaged in their folders."""


def write_report(
    runs: str | Path | Sequence[str | Path], path: str | Path | None = None
) -> WrittenReport:
    """Write one self-contained HTML page for one run folder, or several side by side.

    By default the page of one run is report.html in its folder, that of several report.html in the current folder.
    Raises ConfigError for a folder without a run, DataError for a damaged recipe, DeepNetError when the disk refuses.
    """
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    if not folders:
        raise ConfigError("no run to report; expected at least one run folder")
    path = (
        Path(path) if path else (Path(folders[0]) if len(folders) == 1 else Path()) / "report.html"
    )
    read = read_runs(folders)
    page = page_of(Report.of(read)).encode()
    with atomic_write(path) as file:
        file.write(page)
    notes = [
        f"{run.name}: {note}" for run in read for found in run.notes.values() for note in found
    ]
    return WrittenReport(
        path=path, num_bytes=len(page), names=[run.name for run in read], notes=notes
    )
