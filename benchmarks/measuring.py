"""Spread, environment and result files, shared by the benchmarks; needs no torch in this process."""

import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from deepnet.experiments.verdicts import mean_interval

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "deepnet-transformers",
    "torch",
    "transformers",
    "torchscale",
    "x-transformers",
)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and the interval from the lowest to the highest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def compared(differences: Sequence[float]) -> tuple[str, str]:
    """Return the mean of paired differences and Student's 95% interval, where there are enough; too wide for many."""
    if not differences:
        return "", ""
    found = mean_interval(differences)
    if found is None or found.num_seeds == 1:
        return f"{statistics.mean(differences):+.3f}", ""
    return f"{found.mean:+.3f}", f"{found.low:+.3f} to {found.high:+.3f}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The spread of ours / theirs, each pair taken from the same round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def device() -> str:
    """The processor's name and the number of cores this process may use."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Installed versions of what is measured; a package that is absent says so."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str:
    """The commit of the working tree, marked when the tree differs from it."""
    if not shutil.which("git"):
        return "unknown"

    def git(*arguments: str) -> str:
        finished = subprocess.run(
            ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False
        )
        return finished.stdout.strip()

    # results saved by an earlier benchmark are no change of what is measured
    status = git(
        "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!results", ":!README.md"
    )
    changed = "+changes" if status else ""
    return (git("rev-parse", "--short=12", "HEAD") + changed) or "unknown"


def save(section: str, result: dict[str, object]) -> Path:
    """Put `result` with its environment under `section` of today's file for this device."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", device().lower()).strip("-")
    path = HERE / "results" / f"{today}_{slug}.json"
    sections = json.loads(path.read_text()) if path.exists() else {}
    environment = {"device": device(), "date": today, "commit": commit(), "versions": versions()}
    sections[section] = {**environment, **result}
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(sections, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)
    return path
