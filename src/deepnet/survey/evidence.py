"""What we measured of each scheme, as far as it comes with the package.

`benchmarks/scheme_grid.py --render` writes the file, from all cells; a test holds it against results/.
"""

import json
from importlib import resources
from typing import Any


def read_evidence(name: str) -> list[dict[str, Any]]:
    """Return what the grid of schemes found of one: a row per task and learning rate, none where it was not measured.

    A row has task, rate, losses (by seed, nats per target token of the valid part after the last update) and outcome.
    """
    rows: list[dict[str, Any]] = _grid()["schemes"].get(name, [])
    return rows


def evidence_setting() -> dict[str, Any]:
    """Return how it was measured: command, device, torch, commit, and what each task is and compares with."""
    return {key: value for key, value in _grid().items() if key != "schemes"}


def _grid() -> dict[str, Any]:
    text = (resources.files("deepnet.survey") / "evidence.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
