"""Looped models, and the models of all their layers whose weights are copies."""

import re
from collections import defaultdict

from deepnet.schemes.catalogue import load_scheme
from deepnet.testing.scheme_models import example_loss
from deepnet.transformer.models import Transformer, TransformerConfig


def stored_name(name, stored):
    """Return the name in a model of so many stored layers of what an untied one calls `name`."""
    return re.sub(r"\.layers\.(\d+)\.", lambda m: f".layers.{int(m[1]) % stored}.", name)


def depth(model):
    """Return the stored layers of a stack of a model whose stacks have as many."""
    return len(model.stacks()[0].layers)


def untied(looped, scheme=None):
    """Return the model of all layers that run, of its scheme or another one, not filled yet."""
    config = looped.config
    changed = {**config.running_layers, "loops": 1, "coefficient_depth": "unrolled"}
    return Transformer(config.model_copy(update=changed), scheme or looped.scheme).double()


def copied(looped, scheme=None):
    """Return the model of all layers that run, with the weights of the looped one."""
    model, held, stored = untied(looped, scheme), looped.state_dict(), depth(looped)
    model.load_state_dict({name: held[stored_name(name, stored)] for name in model.state_dict()})
    model.scheme.advance(model, int(looped.scheme_step))
    return model


def gradients(model, batch, *, stored):
    """Return the gradients by name, those of copies of one weight added up."""
    model.zero_grad()
    example_loss(model, batch).backward()
    found = defaultdict(float)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[stored_name(name, stored)] += parameter.grad
    return dict(found)


def looped(scheme="deepnorm", options=None, **shape):
    """Return a small looped model in float64."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32, "num_heads": 2}
    config = TransformerConfig(**{**sizes, "vocab_size": 30, "dropout": 0.0, "loops": 3, **shape})
    named = load_scheme(scheme, options or {}) if isinstance(scheme, str) else scheme
    return Transformer(config, named).double()
