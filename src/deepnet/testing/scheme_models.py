"""The models, batches and updates on which the checks of a scheme are made."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deepnet.schemes.base import Architecture, ResidualScheme
from deepnet.schemes.catalogue import load_scheme
from deepnet.testing.scheme_case import SchemeCase
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimization.optimizers import build_optimizer
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

Batch = tuple[Tensor, Tensor | None, Tensor | None]


def case_scheme(case: SchemeCase) -> ResidualScheme:
    """Return the scheme that a case is about."""
    return load_scheme(case.name, case.options)


def case_architectures(case: SchemeCase) -> tuple[Architecture, ...]:
    """Return the architectures on which a case is checked."""
    return tuple(name for name in case_scheme(case).architectures if name in case.architectures)


def case_model(
    case: SchemeCase,
    architecture: Architecture,
    *,
    layers: int = 2,
    decoder_layers: int | None = None,
    **sizes: Any,
) -> Transformer:
    """Return a small model of the case's scheme, `layers` deep in every stack unless the decoder has its own depth."""
    shape = {"d_model": 16, "ffn_dim": 32, "num_heads": 2, "vocab_size": 30, "dropout": 0.0}
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=0 if architecture == "decoder_only" else layers,
        decoder_layers=0 if architecture == "encoder_only" else decoder_layers or layers,
        **{**shape, **sizes, **case.shape},
    )
    return Transformer(config, case_scheme(case))


def perturbed_model(
    case: SchemeCase, architecture: Architecture, *, updates: int = 1000, **shape: Any
) -> Transformer:
    """Return a float64 model after so many updates whose every parameter is off its start, so that none is idle."""
    torch.manual_seed(1)
    model = case_model(case, architecture, **shape).double()
    model.scheme.advance(model, updates)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def example_batch(architecture: Architecture) -> Batch:
    """Return source [3, 5], its keep mask with padding in a row, and target_in [3, 4]."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(2, 29, (3, 5), generator=generator)
    target_in = torch.randint(2, 29, (3, 4), generator=generator)
    if architecture == "decoder_only":
        return source, None, None
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1, 3:] = False
    return source, keep, target_in if architecture == "encoder_decoder" else None


def example_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return a model's cross-entropy on a batch, to be differentiated."""
    logits: Tensor = model(*batch)
    generator = torch.Generator().manual_seed(2)
    targets = torch.randint(0, logits.shape[-1], logits.shape[:2], generator=generator)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def example_optimizer(model: Transformer) -> Optimizer:
    """Return AdamW with the model's multipliers."""
    config = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.1)
    return build_optimizer(config, policies=parameter_policies(model))


def train_on_example(model: Transformer, optimizer: Optimizer, steps: range) -> None:
    """Do the updates of some steps as the loop does them."""
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        torch.autograd.backward(example_loss(model, example_batch(model.config.architecture)))
        optimizer.step()
        model.scheme.after_update(model)
        model.scheme.advance(model, step + 1)
