"""The doctor tells a deep stack that cannot train from one that can, before either is trained."""

import torch

import deepnet
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.transformer.models import Transformer, TransformerConfig


def translating(scheme, layers):
    """Return a translator of that depth, drawn from one seed, and batches of sentences to copy."""
    torch.manual_seed(1)
    config = TransformerConfig(
        encoder_layers=layers, decoder_layers=layers, d_model=16, ffn_dim=32, num_heads=2,
        vocab_size=12, dropout=0.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(2, 11, (8, 6), generator=generator) for _ in range(4)]
    return Transformer(config, load_scheme(scheme, {})), texts


def copying(model, text):
    shifted = torch.cat([torch.full_like(text[:, :1], 11), text[:, :-1]], dim=1)
    return summed_cross_entropy(model(text, None, shifted), text)


def test_deep_post_ln_at_a_high_rate_is_judged_worse_than_deepnorm():
    """30 + 30 layers, the same seed, sentences and rate; the scheme alone differs."""
    settings = {
        "training": {"max_steps": 1000},
        "optimizer": {"lr": 3e-3},
        "schedule": {"warmup_steps": 40},
    }
    found = {}
    for scheme in ("post_ln", "deepnorm"):
        model, texts = translating(scheme, 30)
        found[scheme] = deepnet.doctor(
            model, texts, copying, settings=settings, count=torch.Tensor.numel, steps=24
        )
    assert found["post_ln"].risk > 0.9
    assert found["deepnorm"].risk < found["post_ln"].risk
    assert found["deepnorm"].verdict != "diverges"
    excess = {name: {s.name: s.excess for s in one.signs} for name, one in found.items()}
    assert excess["post_ln"]["layer_gradient"] > excess["deepnorm"]["layer_gradient"]
