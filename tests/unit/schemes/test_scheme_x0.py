"""The x0 switch: Pre-LN of a normed embedding at its neutral start, nanochat's numbers at the other."""

import pytest
import torch

from deepnet.transformer.inputs import Inputs


def _numbers(stack, name):
    extras = (site.residual.extra for site in stack.sites())
    return [getattr(extra["mix"], name).item() for extra in extras if "mix" in extra]


def test_its_neutral_start_is_pre_ln_bit_for_bit(make_model):
    model = make_model("x0", encoder_layers=4)
    plain = make_model("pre_ln", encoder_layers=4)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.mix." in name or ".entry.norm." in name for name in unexpected)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    outputs = []
    for stack in (model.encoder, plain.encoder):
        state = stack.stream.open(x)
        for layer in stack.layers:
            state = layer(state, Inputs())
        outputs.append(stack.stream.close(state, stack.ends))
    assert torch.equal(*outputs)


def test_what_is_mixed_in_is_the_normed_embedding(make_model, sentences):
    model, states = make_model("x0", dropout=0.0), []
    model.encoder.layers[-1].register_forward_hook(lambda *call: states.append(call[2]))
    model(*sentences)
    ((_, x0),) = states
    torch.testing.assert_close(x0.mean(-1), torch.zeros_like(x0[..., 0]), rtol=0, atol=1e-9)
    torch.testing.assert_close(x0.square().mean(-1), torch.ones_like(x0[..., 0]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("layers", [1, 3])
def test_nanochats_numbers_fall_on_a_line(make_model, layers):
    stack = make_model("x0", {"start": "nanochat"}, encoder_layers=layers).encoder
    assert _numbers(stack, "r") == pytest.approx([1.15, 1.10, 1.05][:layers], abs=1e-7)
    assert _numbers(stack, "z") == pytest.approx([0.20, 0.125, 0.05][:layers], abs=1e-7)
