"""DyT's starting points, and the number on the embedding."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.dyt import DynamicTanh, Scheme

LLAMA_7B = {"attention": 0.8, "ffn": 0.2, "final": 0.3}


def test_each_kind_of_site_has_its_start(make_model):
    model = make_model("dyt", LLAMA_7B)
    starts = {n: m.a.item() for n, m in model.named_modules() if isinstance(m, DynamicTanh)}
    expected = {"self": 0.8, "cross": 0.8, "ffn": 0.2, "ends": 0.3}
    assert len(starts) == 2 * 2 + 3 * 2 + 2
    for name, start in starts.items():
        (kind,) = (kind for kind in expected if f".{kind}." in name)
        assert start == pytest.approx(expected[kind], rel=1e-6)


def test_the_number_on_the_embedding_is_trained_and_leaves_positions_alone(make_model, sentences):
    model, (source, _, _) = make_model("dyt"), sentences
    entry, rows = model.encoder.entry, model.source_embedding(source)
    positions = entry.positions(0, 5)
    torch.testing.assert_close(entry(rows, 0), 4.0 * rows + positions, rtol=0, atol=1e-6)
    with torch.no_grad():
        entry.multiplier.factor.fill_(2.5)
    torch.testing.assert_close(entry(rows, 0), 2.5 * rows + positions, rtol=0, atol=1e-12)
    model(*sentences).logsumexp(-1).sum().backward()
    assert entry.multiplier.factor.grad.abs().item() > 0


def test_there_is_no_norm_left(make_model):
    kinds = {type(module).__name__ for module in make_model("dyt").modules()}
    assert not [kind for kind in kinds if kind.endswith("Norm")]


def test_a_start_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"final is 0\.0"):
        Scheme(final=0.0)
