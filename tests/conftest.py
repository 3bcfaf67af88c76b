"""Shared by all tests: a fixed seed, and small models to try things on."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, settings

from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

TINY = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "ffn_dim": 32,
    "num_heads": 2,
    "vocab_size": 30,
    "dropout": 0.0,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-browser", action="store_true", help="fail, not skip, where there is no Chromium"
    )
    parser.addoption(
        "--device", help="what tests/gpu runs on: cuda, or cpu to run its lines without a card"
    )


def pytest_configure() -> None:
    # how long an example takes says how busy the machine is
    settings.register_profile(
        "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("unhurried")
    # a job in the background of a shell ignores Ctrl-C, and so would every process that a test starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """Return a function (script, *arguments, ranks=1) -> what it prints: it must end well, also under torchrun."""

    def run(script: str, *arguments: object, ranks: int = 1) -> str:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        result = subprocess.run(
            [sys.executable, *(torchrun if ranks > 1 else ()), script, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture(scope="session")
def run_pair() -> Callable[..., tuple[list[int], list[str]]]:
    """Return a function (script, *arguments) -> exit codes and standard errors of its two ranks, without torchrun."""

    def run(script: str, *arguments: object) -> tuple[list[int], list[str]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [sys.executable, script, *map(str, arguments)],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **place, "RANK": n, "LOCAL_RANK": n},
            )
            for n in ("0", "1")
        ]
        try:
            said = [process.communicate(timeout=600)[1] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return [process.returncode for process in ranks], said

    return run


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """Return a function (scheme or its name, its options, **shape) -> a tiny float64 model."""

    def make(
        scheme: str | ResidualScheme = "deepnorm", options: dict | None = None, **shape: object
    ) -> Transformer:
        config = TransformerConfig(**{**TINY, **shape})
        named = load_scheme(scheme, options) if isinstance(scheme, str) else scheme
        return Transformer(config, named).double()

    return make


@pytest.fixture
def sentences() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return source [3, 5] with padding in its second row, its keep mask, and target_in [3, 4]."""
    source = torch.randint(2, 29, (3, 5))
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1, 3:] = False
    source[1, 3:] = 29
    target_in = torch.randint(2, 29, (3, 4))
    target_in[:, 0] = 29
    return source, keep, target_in
