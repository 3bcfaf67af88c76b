"""Our kinds of attention inside whole models of Hugging Face, built from a configuration, with the same weights."""

import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from deepnet.anatomy.locate import locate
from deepnet.schemes.base import StackContext
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.plans import stack_context
from deepnet.transformer.positions.base import Places
from deepnet.transformer.positions.relative import Positions, bucket

VOCAB, WIDTH = 30, 32
SIZES = {
    "d_model": WIDTH, "ffn_dim": 48, "vocab_size": VOCAB + 1, "norm": "rms_norm", "norm_eps": 1e-6, "dropout": 0.0,
}  # fmt: skip


def context(stack: str, heads: int) -> StackContext:
    config = TransformerConfig(d_model=WIDTH, num_heads=heads)
    return stack_context(config, stack, optimizer_family="adam")


@torch.no_grad()
def take_weights(ours: Transformer, theirs: nn.Module) -> None:
    """Copy what both have, after moving theirs off its start; Hugging Face has no factor sqrt(D) on its embeddings."""
    for parameter in theirs.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for mine, found in zip(ours.sites(), locate(theirs).sites(), strict=True):
        matrices = {weight.role: weight.matrix() for weight in found.part.weights}
        for role, linear in mine.branch.roles().items():
            linear.weight.copy_(matrices[role])
    norms = [m for m in theirs.modules() if type(m).__name__ in ("LlamaRMSNorm", "T5LayerNorm")]
    mine = [m for m in ours.modules() if isinstance(m, nn.RMSNorm)]
    for norm, other in zip(mine, norms, strict=True):
        norm.weight.copy_(other.weight)
    rows = theirs.get_input_embeddings().weight
    ours.target_embedding.weight[:-1] = rows / math.sqrt(WIDTH)


@pytest.mark.parametrize("length", [7, 16])
@torch.no_grad()
def test_t5(length):
    config = T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4,
        dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = T5ForConditionalGeneration(config).double().eval()
    shape = TransformerConfig(
        **SIZES, encoder_layers=2, decoder_layers=3, num_heads=4, positions="relative"
    )
    ours = Transformer(shape, load_scheme("pre_ln")).double().eval()
    take_weights(ours, theirs)
    for site in ours.sites():
        if site.kind != "ffn":
            site.branch.q.weight.mul_(math.sqrt(8))  # T5 does not scale its scores
    for mine, stack in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        mine.positions.bias.copy_(table)
    source, target_in = torch.randint(2, VOCAB, (2, 3, length))
    keep = torch.ones(3, length, dtype=torch.bool)
    keep[1, -2:] = False
    expected = theirs(
        input_ids=source, attention_mask=keep.long(), decoder_input_ids=target_in
    ).logits
    # its norms compute in float32
    torch.testing.assert_close(ours(source, keep, target_in), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@torch.no_grad()
def test_t5s_buckets_and_biases_to_any_distance(stack):
    config = T5Config(d_model=WIDTH, d_kv=8, num_heads=4, is_decoder=stack == "decoder")
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = Positions(context(stack, 4), 0)
    ours.bias.copy_(theirs.relative_attention_bias.weight)
    places = torch.arange(300)
    expected = theirs.compute_bias(300, 300)
    found = ours(Places(places, places), dtype=torch.float32).bias
    seen = torch.ones(300, 300, dtype=torch.bool)
    seen = seen if stack == "encoder" else seen.tril()  # the future is hidden anyway
    assert torch.equal(found[..., seen], expected[..., seen])
    numbers = bucket(torch.arange(-300, 300), both_ways=stack == "encoder")
    assert numbers.unique().numel() == (31 if stack == "encoder" else 32)  # 0 ahead is nobody


@pytest.mark.parametrize("length", [7, 16])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@torch.no_grad()
def test_llama_with_fewer_key_heads(key_heads, length):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=key_heads, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).double().eval()
    shape = TransformerConfig(
        **SIZES, architecture="decoder_only", encoder_layers=0, decoder_layers=3, num_heads=4,
        num_kv_heads=key_heads, positions="rotary", activation="swiglu", tie_embeddings="none",
    )  # fmt: skip
    ours = Transformer(shape, load_scheme("pre_ln")).double().eval()
    take_weights(ours, theirs)
    ours.vocabulary.rows.weight[:-1] = theirs.lm_head.weight
    ids = torch.randint(2, VOCAB, (3, length))
    # its norms and angles are computed in float32
    torch.testing.assert_close(ours(ids), theirs(input_ids=ids).logits, rtol=0, atol=2e-5)
