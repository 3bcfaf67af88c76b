"""Our post-norm and pre-norm encoders and decoders against torch.nn's, with the same weights, in float64."""

import warnings

import pytest
import torch
from torch import nn

from deepnet.transformer.masks import broadcast_keep


def _copy_attention(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    theirs.in_proj_weight.data = torch.cat([ours.q.weight, ours.k.weight, ours.v.weight])
    theirs.in_proj_bias.data = torch.cat([ours.q.bias, ours.k.bias, ours.v.bias])
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def _copy_stack(theirs: nn.Module, ours: nn.Module, *, pre: bool) -> None:
    for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
        subs = our_layer.sublayers
        _copy_attention(their_layer.self_attn, subs["self"].branch)
        if "cross" in subs:
            _copy_attention(their_layer.multihead_attn, subs["cross"].branch)
        their_layer.linear1.load_state_dict(subs["ffn"].branch.fc1.state_dict())
        their_layer.linear2.load_state_dict(subs["ffn"].branch.fc2.state_dict())
        for number, sub in enumerate(subs.values(), start=1):
            norm = sub.residual.pre if pre else sub.residual.post
            their_layer.get_submodule(f"norm{number}").load_state_dict(norm.state_dict())
    theirs.norm = ours.ends.final


@pytest.mark.parametrize("scheme", ["post_ln", "pre_ln"])
def test_encoder_and_decoder_equal_torch(make_model, sentences, scheme):
    source, keep, target_in = sentences
    model, pre = make_model(scheme).eval(), scheme == "pre_ln"
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that pre-norm has no nested tensors
        theirs = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True, norm_first=pre)
    theirs = theirs.double().eval()
    _copy_stack(theirs.encoder, model.encoder, pre=pre)
    _copy_stack(theirs.decoder, model.decoder, pre=pre)
    x = model.encoder.entry(model.source_embedding(source), 0)
    y = model.decoder.entry(model.target_embedding(target_in), 0)
    with torch.enable_grad():  # keeps torch off its fused path, which is another implementation
        memory = theirs.encoder(x, src_key_padding_mask=~keep)
        causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
        decoded = theirs.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=~keep)
    assert broadcast_keep(keep).shape == (3, 1, 1, 5)
    ours = model.encode(source, keep)
    torch.testing.assert_close(ours[keep], memory[keep], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        model(source, keep, target_in), model.project(decoded), rtol=0, atol=1e-12
    )
