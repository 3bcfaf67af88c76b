"""What these tests run on, and a small training run there.

CUDA where there is a card, what `--device` names otherwise, so that `--device cpu` runs their lines without one; with
neither they are skipped.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from deepnet.data.objectives import Batch
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.loop import train_loop
from deepnet.training.loss import token_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

PAD = 15
LENGTHS = (6, 9, 5, 7, 11, 4, 8, 10)
"""Tokens of the longest sentence of each update, all different: by its length an update is known."""


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    asked = request.config.getoption("--device")
    found = torch.device(asked or "cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        if asked:
            pytest.fail(f"--device {asked}, but torch {torch.__version__} sees no CUDA device here")
        pytest.skip("no CUDA device here; --device cpu runs the same lines without one")
    return found


@pytest.fixture(autouse=True)
def _products_in_float32(device: torch.device) -> None:
    torch.set_float32_matmul_precision("highest")  # TF32 has the precision of bf16 and a half


@pytest.fixture
def deterministic(device: torch.device) -> Iterator[Callable[[bool], None]]:
    """Return a function that has torch take kernels which add up in one order only, until the test ends."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS has none
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


def counting(length: int) -> Batch:
    """Return pairs whose target counts on from the source's first id; a third of the last source is padding."""
    draw = torch.Generator().manual_seed(length)
    source = torch.randint(1, PAD, (6, length), generator=draw)
    target = (source[:, :1] + torch.arange(length)) % (PAD - 1) + 1
    keep = torch.ones_like(source, dtype=torch.bool)
    keep[-1, 2 * length // 3 :] = False
    target_in = torch.cat([torch.full((6, 1), PAD), target[:, :-1]], 1)
    count = target.numel()
    return Batch(source.masked_fill(~keep, PAD), keep, target_in, target, count, int(keep.sum()))


@pytest.fixture
def updates(device: torch.device) -> ListedUpdates:
    """The updates of an epoch, on the device: of one micro-batch or two."""
    batches = [counting(length).to(device) for length in LENGTHS]
    groups = [*((batch,) for batch in batches[:4]), batches[4:6], batches[6:]]
    return ListedUpdates(
        [ListedUpdate(tuple(group), sum(b.num_tokens for b in group)) for group in groups]
    )


def small_model(scheme: str = "deepnorm", *, layers: int = 2, **shape: object) -> Transformer:
    """Return a translator with dropout."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "ffn_dim": 64, "num_heads": 2, "vocab_size": PAD + 1, "dropout": 0.1}
    config = TransformerConfig(encoder_layers=layers, decoder_layers=layers, **{**sizes, **shape})
    return Transformer(config, load_scheme(scheme, {}))


def train_small(
    device: torch.device,
    root: Path,
    updates: ListedUpdates,
    name: str = "run",
    *,
    precision: str = "fp32",
    resume: bool = False,
    model: Transformer | None = None,
    **given: object,
) -> tuple[Transformer, RunFolder]:
    """Train a small model; keys of TrainingConfig and arguments of train_loop may be mixed."""
    settings = {"max_steps": 12, "log_every": 1, "save_every": 3, "label_smoothing": 0.0}
    settings |= {key: given.pop(key) for key in given.keys() & TrainingConfig.model_fields.keys()}
    open_run = RunFolder.open if resume else partial(RunFolder.create, recipe={})
    run, model = open_run(root / name), model or small_model()
    arguments = {"loss": token_loss(label_smoothing=0.0), "ranks": Ranks(device), **given}
    train_loop(
        model,
        loader=updates,
        run=run,
        training=TrainingConfig(**settings),
        optimizer=OptimizerConfig(lr=1e-2, eps=1e-4),  # gradients that are rounding move nothing
        schedule=ScheduleConfig(warmup_steps=5),
        policies=parameter_policies(model),
        blocks=[layer for stack in model.stacks() for layer in stack.layers],
        precision=Precision(precision, device.type),
        resume=resume,
        **arguments,
    )
    return model, run


@pytest.fixture
def train(
    device: torch.device, tmp_path: Path, updates: ListedUpdates
) -> Callable[..., tuple[Transformer, RunFolder]]:
    """Return a function (name, **keys and arguments) -> the model and its run folder; see `train_small`."""
    return partial(train_small, device, tmp_path, updates)


@pytest.fixture
def make_small() -> Callable[..., Transformer]:
    """Return the function (scheme, **shape) -> a small translator."""
    return small_model
