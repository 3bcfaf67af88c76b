"""CPU time of `deepnet --help` beyond a bare Python start, and whether importing deepnet loads torch.

benchmarks/.venv/bin/python benchmarks/startup.py
benchmarks/.venv/bin/python benchmarks/table.py
"""

import os
import subprocess
import sys
from pathlib import Path

from measuring import save, spread

REPEATS = 9
BARE = [sys.executable, "-c", "pass"]
HELP = [str(Path(sys.executable).parent / "deepnet"), "--help"]
IMPORT = [sys.executable, "-c", "import sys, deepnet; sys.exit('torch' in sys.modules)"]


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run of `command`."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def main() -> None:
    pairs = [(cpu_seconds(BARE), cpu_seconds(HELP)) for _ in range(REPEATS + 1)][1:]
    result = {
        "config": {"repeats": REPEATS},
        "bare_python_seconds": spread([bare for bare, _ in pairs]),
        "help_seconds": spread([helped for _, helped in pairs]),
        "help_beyond_bare_seconds": spread([helped - bare for bare, helped in pairs]),
        "importing deepnet imports torch": subprocess.run(IMPORT, check=False).returncode != 0,
    }
    print(save("startup", result))


if __name__ == "__main__":
    main()
