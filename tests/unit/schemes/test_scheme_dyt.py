"""DyT's and Derf's starting points, functions, and the number on the embedding."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes import derf, dyt
from deepnet.schemes.derf import DynamicErf
from deepnet.schemes.dyt import DynamicTanh

LLAMA_7B = {"attention": 0.8, "ffn": 0.2, "final": 0.3}


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_each_kind_of_site_has_its_start(make_model, name):
    model = make_model(name, LLAMA_7B)
    starts = {n: m.a.item() for n, m in model.named_modules() if isinstance(m, DynamicTanh)}
    expected = {"self": 0.8, "cross": 0.8, "ffn": 0.2, "ends": 0.3}
    assert len(starts) == 2 * 2 + 3 * 2 + 2
    for name, start in starts.items():
        (kind,) = (kind for kind in expected if f".{kind}." in name)
        assert start == pytest.approx(expected[kind], rel=1e-6)


@pytest.mark.parametrize(("scheme", "start"), [(dyt.Scheme(), 0.5), (derf.Scheme(), 1.0)])
def test_without_options_all_start_alike(scheme, start):
    assert {scheme.attention, scheme.ffn, scheme.final} == {start}


def test_what_the_functions_make_of_a_half():
    """tanh and erf of 1 / 2 from tables, moved and turned over by g, b and s."""
    x = torch.ones(1, dtype=torch.float64)
    for kind, value in ((DynamicTanh, 0.46211715726), (DynamicErf, 0.52049987781)):
        module = kind(1, 0.5).double()
        assert module(x).item() == pytest.approx(value, abs=1e-10)
        with torch.no_grad():
            module.g.fill_(-2.0)
            module.b.fill_(3.0)
        assert module(x).item() == pytest.approx(3 - 2 * value, abs=1e-10)
    with torch.no_grad():
        module.s.fill_(-0.5)
    assert module(x).item() == pytest.approx(3.0, abs=1e-15)


def test_derf_has_one_number_more_and_dyts_names(make_model):
    names = [dict(make_model(name).named_parameters()) for name in ("dyt", "derf")]
    more = names[1].keys() - names[0].keys()
    assert not names[0].keys() - names[1].keys()
    assert {name.rpartition(".")[2] for name in more} == {"s"}
    assert len(more) == 2 * 2 + 3 * 2 + 2
    # b is there whatever the model's biases are
    assert sum(name.endswith(".b") for name in names[1]) == 2 * 2 + 3 * 2 + 2


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_the_number_on_the_embedding_is_trained_and_leaves_positions_alone(
    make_model, sentences, name
):
    model, (source, _, _) = make_model(name), sentences
    entry, rows = model.encoder.entry, model.source_embedding(source)
    positions = entry.positions(0, 5)
    torch.testing.assert_close(entry(rows, 0), 4.0 * rows + positions, rtol=0, atol=1e-6)
    with torch.no_grad():
        entry.multiplier.factor.fill_(2.5)
    torch.testing.assert_close(entry(rows, 0), 2.5 * rows + positions, rtol=0, atol=1e-12)
    model(*sentences).logsumexp(-1).sum().backward()
    assert entry.multiplier.factor.grad.abs().item() > 0


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_there_is_no_norm_left(make_model, name):
    kinds = {type(module).__name__ for module in make_model(name).modules()}
    assert not [kind for kind in kinds if kind.endswith("Norm")]


@pytest.mark.parametrize("kind", [dyt.Scheme, derf.Scheme])
def test_a_start_of_0_is_refused(kind):
    with pytest.raises(ConfigError, match=r"final is 0\.0"):
        kind(final=0.0)
