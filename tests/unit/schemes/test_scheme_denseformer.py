"""DenseFormer starts as Pre-LN to the last bit, and averages what its sources average."""

import equations
import pytest
import torch
from recomputing import check_recompute

from deepnet.errors import ConfigError
from deepnet.schemes.denseformer import Scheme
from deepnet.testing.scheme_case import StackParts
from deepnet.transformer.inputs import Inputs

FORMS = [(1, 1), (4, 5), (2, 1), (1, 3)]


def _shape(layers):
    return {"encoder_layers": 2, "decoder_layers": layers}


def _rows(stack):
    extras = (site.residual.extra for site in stack.sites())
    return [extra["average"].weight for extra in extras if "average" in extra]


@pytest.mark.parametrize(("dilation", "period", "numbers"), [(1, 1, 90), (4, 5, 5), (12, 1, 13)])
def test_12_layers_have_as_many_weights_as_in_the_source(make_model, dilation, period, numbers):
    options = {"dilation": dilation, "period": period}
    model = make_model("denseformer", options, **_shape(12))
    assert sum(row.numel() for row in _rows(model.decoder)) == numbers


@pytest.mark.parametrize(("dilation", "period"), FORMS)
def test_at_the_start_it_is_pre_ln_bit_for_bit(make_model, sentences, dilation, period):
    options = {"dilation": dilation, "period": period}
    model = make_model("denseformer", options, **_shape(6)).float()
    plain = make_model("pre_ln", **_shape(6)).float()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.average." in name for name in unexpected)
    assert torch.equal(model(*sentences), plain(*sentences))


def _run(stack, x):
    state = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, Inputs())
    return stack.stream.close(state, stack.ends)


@pytest.mark.parametrize(("dilation", "period"), FORMS)
def test_any_weights_compute_the_equation(make_model, dilation, period):
    options = {"dilation": dilation, "period": period}
    model = make_model("denseformer", options, encoder_layers=7)
    with torch.no_grad():
        for row in _rows(model.encoder):
            row.normal_()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    expected = equations.denseformer(dilation, period)(
        x, StackParts.of(model.encoder, Inputs(), model.config)
    )
    torch.testing.assert_close(_run(model.encoder, x), expected, rtol=0, atol=1e-10)


def test_what_is_averaged_are_outputs_before_their_own_average(make_model):
    """X_1 enters the average after layer 2 as layer 1 returned it, whatever the average after layer 1 was."""
    stack = make_model("denseformer").encoder
    first, second = _rows(stack)
    with torch.no_grad():
        first.copy_(torch.tensor([5.0, 0.0]))  # the embedding, five times
        second.copy_(torch.tensor([0.0, 1.0, 0.0]))
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    states, state = [], stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, Inputs())
        states.append(state)
    torch.testing.assert_close(states[0][0], 5 * x)
    assert torch.equal(states[1][0], states[0][-1])
    assert (states[1][0] - x).abs().max() > 0.1


def test_recompute_gives_the_same_gradients(make_model, sentences):
    model = make_model("denseformer")
    with torch.no_grad():
        for stack in model.stacks():
            for row in _rows(stack):
                row.normal_()
    check_recompute(model, sentences)


@pytest.mark.parametrize("name", ["dilation", "period"])
def test_steps_of_no_layer_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        Scheme(**{name: 0})
