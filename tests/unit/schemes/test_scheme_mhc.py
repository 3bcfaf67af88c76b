"""mHC as shipped: Pre-LN where its logits are 0, C the right way round, sums as its Sinkhorn steps leave them."""

import math

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes import mhc
from deepnet.schemes.mhc import Scheme

N = 4


def _maps(model):
    return [site.residual.extra["maps"] for stack in model.stacks() for site in stack.sites()]


def _silence(model):
    """Set every gate to 0, so that no logit depends on content."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".gates"):
                parameter.zero_()


def _difference_from_pre_ln(make_model, model, sentences, **shape):
    plain = make_model("pre_ln", **shape)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.maps." in name or ".ends.merge." in name for name in unexpected)
    return (model(*sentences) - plain(*sentences)).abs().max().item()


@pytest.mark.parametrize(("eps", "bound"), [(1e-12, 5e-6), (1e-6, 5e-5)])
def test_with_zero_logits_it_is_pre_ln_up_to_eps(make_model, sentences, monkeypatch, eps, bound):
    """Streams of twice the size see a quarter of the norms' eps; and after the last Sinkhorn step, which divides by a
    sum and eps, columns of C sum to 1 - eps, so that each of the 20 sites takes 1e-6 of the streams away.
    """
    monkeypatch.setattr(mhc, "_EPS", eps)
    shape = {"encoder_layers": 4, "decoder_layers": 4, "norm_eps": 1e-6}
    model = make_model("mhc", **shape)
    _silence(model)
    assert 0 < _difference_from_pre_ln(make_model, model, sentences, **shape) < bound
    maps = _maps(model)[0](torch.randn(N, 2, 3, 16, dtype=torch.float64))
    read, write, mix = maps.split([1, 1, N], dim=-1)
    for part, value in ((read, 0.5), (write, 1.0), (mix, 0.25)):
        torch.testing.assert_close(part, torch.full_like(part, value), rtol=0, atol=3e-6)


def test_at_the_start_it_is_close_to_pre_ln_and_its_streams_part(make_model, sentences):
    model = make_model("mhc")
    assert 0 < _difference_from_pre_ln(make_model, model, sentences) < 0.1
    states = []
    model.decoder.layers[-1].register_forward_hook(lambda *call: states.append(call[2]))
    model(*sentences)
    assert states[0].std(0).max() > 1e-4


def test_an_asymmetric_c_is_not_transposed(make_model):
    """C from b alone, in plain numbers; three public codes had X_j <- sum_k C_jk X_k."""
    stack = make_model("mhc", encoder_layers=1).encoder
    site = stack.sites()[0].residual
    logits = [[0, 3, -1, 0.5], [0, 0, 2, 0], [1, 0, 0, 3], [2, -1, 0, 0]]  # round and round
    with torch.no_grad():
        site.extra["maps"].gates.zero_()
        site.extra["maps"].table[:, 2:] = torch.tensor(logits)
    c = _doubly_stochastic(logits)
    assert max(abs(c[j][k] - c[k][j]) for j in range(N) for k in range(N)) > 0.3
    state = torch.randn(N, 2, 3, 16, dtype=torch.float64)
    _, (mixed, _) = stack.stream.read(state, site)
    for k in range(N):
        right = sum(c[j][k] * state[j] for j in range(N))
        transposed = sum(c[k][j] * state[j] for j in range(N))
        torch.testing.assert_close(mixed[k], right, rtol=0, atol=1e-10)
        assert (mixed[k] - transposed).abs().max() > 0.1


def _doubly_stochastic(logits):
    rows = [[math.exp(z) for z in row] for row in logits]
    c = [[z / sum(row) + 1e-6 for z in row] for row in rows]
    for step in range(20):
        if step:
            c = [[z / (sum(row) + 1e-6) for z in row] for row in c]
        columns = [sum(row[k] for row in c) + 1e-6 for k in range(N)]
        c = [[z / columns[k] for k, z in enumerate(row)] for row in c]
    return c


def test_sums_are_1_and_b_is_up_to_2(make_model):
    """Of an arbitrary map: B without the 2 would stay below 1, a sigmoid in place of the softmax not sum to 1."""
    maps = _maps(make_model("mhc"))[0]
    with torch.no_grad():
        for parameter in maps.parameters():
            parameter.normal_()
    read, write, mix = maps(torch.randn(N, 2, 3, 16, dtype=torch.float64)).split([1, 1, N], -1)
    assert 0 < read.min() < read.max() < 1 + 2e-6
    assert write.min() > 0
    assert 1.5 < write.max() < 2
    ones = torch.ones(2, 3, N, dtype=torch.float64)
    torch.testing.assert_close(mix.sum(0), ones, rtol=0, atol=2e-6)  # eps beside the sum
    torch.testing.assert_close(mix.sum(-1), ones.permute(2, 0, 1), rtol=0, atol=0.05)


def test_what_content_adds_starts_as_megatron_draws_it(make_model):
    model = make_model("mhc", d_model=64)
    for maps in _maps(model):
        limit = math.sqrt(6 / (4 * 64 + 24))
        assert maps.weight.abs().max() <= limit
        assert maps.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)
        assert maps.gates.tolist() == pytest.approx([0.01] * 3)
        assert not maps.table.any()


def test_autocast_rounds_neither_maps_nor_streams(make_model, sentences):
    model, states = make_model("mhc").float(), []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda *call: states.append(call[2]))
    _maps(model)[0].register_forward_hook(lambda *call: states.append(call[2]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*sentences)
    assert [state.dtype for state in states] == [torch.float32] * 3


def test_no_stream_is_refused():
    with pytest.raises(ConfigError, match="streams is 0"):
        Scheme(streams=0)
