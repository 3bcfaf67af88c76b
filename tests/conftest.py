"""Shared by all tests: a fixed seed, and small models to try things on."""

import signal
from collections.abc import Callable

import pytest
import torch

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
    # a job in the background of a shell ignores Ctrl-C, and so would every process that a test starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """Return a function (scheme name, scheme options, **shape) -> a tiny float64 model."""

    def make(name: str = "deepnorm", options: dict | None = None, **shape: object) -> Transformer:
        config = TransformerConfig(**{**TINY, **shape})
        return Transformer(config, load_scheme(name, options)).double()

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
