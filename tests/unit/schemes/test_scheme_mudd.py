"""MUDD's residual channel starts as Pre-LN; its maps have the authors' widths, and any of them compute the equation."""

import equations
import pytest
import torch
from recomputing import check_recompute

from deepnet.testing.scheme_case import StackParts
from deepnet.transformer.inputs import Inputs


def _dense(stack):
    extras = (site.residual.extra for site in stack.sites())
    return [extra["dense"] for extra in extras if "dense" in extra]


def _scatter(model):
    with torch.no_grad():
        for stack in model.stacks():
            for dense in _dense(stack):
                dense.static.normal_()
                dense.w2.normal_(std=0.2)


def test_at_the_start_it_is_pre_ln_bit_for_bit(make_model, sentences):
    shape = {"encoder_layers": 3, "decoder_layers": 5}
    model = make_model("mudd", **shape)
    plain = make_model("pre_ln", **shape)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.dense." in name for name in unexpected)
    assert torch.equal(model(*sentences), plain(*sentences))


def test_any_maps_compute_the_equation(make_model):
    model = make_model("mudd", encoder_layers=5)
    _scatter(model)
    stack, x = model.encoder, torch.randn(2, 3, 16, dtype=torch.float64)
    state = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, Inputs())
    expected = equations.mudd(x, StackParts.of(stack, Inputs(), model.config))
    found = stack.stream.close(state, stack.ends)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("layers", "widths"),
    # sources // 64 + 1 times 64, as the code has it: 64 sources make 128; four times as many in the last layer
    [(2, [64, 64]), (16, [*[64] * 15, 128]), (64, [*[64] * 62, 128, 320])],
)
def test_the_hidden_widths_are_those_of_the_source(make_model, layers, widths):
    stack = make_model("mudd", encoder_layers=layers, d_model=2, ffn_dim=2, num_heads=1).encoder
    assert [dense.w1.shape[1] for dense in _dense(stack)] == widths
    assert [dense.w2.shape[1] for dense in _dense(stack)] == list(range(2, layers + 2))


def test_the_weights_of_one_token_do_not_depend_on_another(make_model):
    model = make_model("mudd")
    _scatter(model)
    dense = _dense(model.encoder)[-1]
    outputs = [torch.randn(1, 4, 16, dtype=torch.float64) for _ in range(3)]
    changed = [output.clone() for output in outputs]
    changed[-1][:, 2] += 1.0
    difference = (dense(tuple(changed)) - dense(tuple(outputs))).abs().amax(-1)[0]
    assert difference[[0, 1, 3]].max() == 0
    assert difference[2] > 0.1


def test_recompute_gives_the_same_gradients(make_model, sentences):
    model = make_model("mudd")
    _scatter(model)
    check_recompute(model, sentences)
