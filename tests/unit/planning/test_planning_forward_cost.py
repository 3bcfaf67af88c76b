"""What a forward pass costs, against the products counted by hand."""

import pytest

from deepnet.planning.forward_cost import forward_cost
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

D, F, V, LENGTH = 16, 32, 30, 25
ATTENTION = 4 * D * D
"""Numbers of q, k, v and out."""
SCORES = 2 * 2 * LENGTH * D
"""Operations of queries with keys, and of weights with values, for a token."""


def build(**shape):
    config = TransformerConfig(d_model=D, ffn_dim=F, num_heads=2, vocab_size=V, **shape)
    return Transformer(config, load_scheme("pre_ln"))


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 2), (1, 3)])
def test_an_encoder_decoder(encoder, decoder):
    cost = forward_cost(lambda: build(encoder_layers=encoder, decoder_layers=decoder))
    ffn = 2 * D * F
    encoded = encoder * (2 * (ATTENTION + ffn) + SCORES)
    decoded = decoder * (2 * (2 * ATTENTION + ffn) + 2 * SCORES) + 2 * D * (V - 1)
    assert cost.flops == (encoded + decoded) / 2
    biases_and_norms = 4 * D + F + D + 2 * 2 * D
    layer = ATTENTION + ffn + biases_and_norms
    cross = ATTENTION + 4 * D + 2 * D
    ends = V * D + 2 * 2 * D
    assert cost.parameters == encoder * layer + decoder * (layer + cross) + ends


def test_one_stack_reads_one_text():
    shape = {"architecture": "decoder_only", "encoder_layers": 0, "decoder_layers": 2}
    cost = forward_cost(lambda: build(**shape))
    assert cost.flops == 2 * (2 * (ATTENTION + 2 * D * F) + SCORES) + 2 * D * (V - 1)
