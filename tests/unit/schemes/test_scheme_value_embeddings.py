"""Value embeddings: which layers have a table, how it is drawn, what it learns at, and whose tokens it reads."""

import math

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.initialize import initialization_report, parameter_policies
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.models import Transformer, TransformerConfig


def tables(model):
    """Return the tables by stack and layer."""
    return {
        (site.residual.site.stack, site.residual.site.layer): site.residual.extra["value_table"]
        for site in model.sites()
        if "value_table" in site.residual.extra
    }


@pytest.mark.parametrize(("layers", "expected"), [(1, [1]), (2, [2]), (3, [1, 3]), (4, [2, 4])])
def test_every_second_layer_has_a_table_the_last_one_among_them(make_model, layers, expected):
    model = make_model("value_embeddings", encoder_layers=layers, decoder_layers=layers)
    # nanochat's rule, layers from 0: l = L - 1 modulo 2
    assert expected == [n + 1 for n in range(layers) if n % 2 == (layers - 1) % 2]
    assert sorted(tables(model)) == [(s, n) for s in ("decoder", "encoder") for n in expected]
    assert all(site.kind == "self" for site in model.sites() if site.residual.plan.values != "own")


def test_tables_and_gates_are_drawn_as_nanochats():
    config = TransformerConfig(
        d_model=256, ffn_dim=8, num_heads=8, vocab_size=2000, encoder_layers=2, decoder_layers=2
    )
    model = Transformer(config, load_scheme("value_embeddings"))
    limit = math.sqrt(3 / 256)
    for table in tables(model).values():
        rows, gate = table.weight[:-1].detach(), table.gate.detach()
        assert rows.std().item() == pytest.approx(256**-0.5, rel=4 / math.sqrt(2 * rows.numel()))
        assert 0.99 * limit < rows.max() <= limit
        assert not table.weight[-1].any()
        assert gate.shape == (8, 12)
        assert 0.0 <= gate.min() < gate.max() <= 0.02
        assert gate.mean().item() == pytest.approx(
            0.01, abs=4 * 0.02 / math.sqrt(12 * gate.numel())
        )
    assert all(line.standard_errors < 4 for line in initialization_report(model))


@pytest.mark.parametrize("base", ["pre_ln", "deepnorm"])
def test_at_the_start_a_gate_is_near_one_and_a_half_and_values_are_the_formula_to_1e_10(
    make_model, sentences, base
):
    model = make_model("value_embeddings", {"base": base}, encoder_layers=3, decoder_layers=2)
    found = []
    for site in model.sites():
        if site.residual.plan.values != "own":
            kept = {}
            site.branch.v.register_forward_hook(lambda *call, kept=kept: kept.update(v=call[2]))
            site.branch.register_forward_pre_hook(
                lambda _, args, kept=kept, site=site: found.append((site, kept["v"], *args[:2]))
            )
    model(*sentences)
    assert len(found) == 3
    for site, own, x, inputs in found:
        table = site.residual.extra["value_table"]
        ids = sentences[0] if site.residual.site.stack == "encoder" else sentences[2]
        expected = own.clone()
        for b, t, head in torch.cartesian_prod(*map(torch.arange, (*ids.shape, 2))).tolist():
            gate = 3 * torch.sigmoid(sum(table.gate[head, c] * x[b, t, c] for c in range(12)))
            assert gate.item() == pytest.approx(1.5, abs=0.5)
            expected[b, t, 8 * head : 8 * head + 8] += (
                gate * table.weight[ids[b, t], 8 * head : 8 * head + 8]
            )
        torch.testing.assert_close(inputs.values, expected, rtol=0, atol=1e-10)


def test_a_token_is_what_a_table_is_asked_for_and_padding_says_nothing(make_model, sentences):
    model = make_model("value_embeddings")
    source, keep, target_in = sentences
    model(source, keep, target_in).logsumexp(-1).sum().backward()
    for (stack, _), table in tables(model).items():
        read = set((source if stack == "encoder" else target_in).flatten().tolist()) - {29}
        # a source that attention hides has no gradient
        seen = set(source[keep].tolist()) if stack == "encoder" else read
        moved = set(table.weight.grad.abs().sum(1).nonzero().flatten().tolist())
        assert moved == seen


def test_the_encoders_table_is_as_long_as_its_vocabulary(make_model):
    model = make_model("value_embeddings", source_vocab_size=17, tie_embeddings="decoder")
    assert {stack: len(table.weight) for (stack, _), table in tables(model).items()} == {
        "encoder": 17,
        "decoder": 30,
    }


def test_tables_learn_and_decay_as_the_embedding_and_gates_as_what_is_no_matrix():
    shape = TransformerConfig(
        d_model=16, ffn_dim=32, num_heads=2, vocab_size=30, encoder_layers=2, decoder_layers=2
    )
    ends = EndsConfig(embedding_lr_multiplier=30.0, embedding_weight_decay_multiplier=0.25)
    for chosen, expected in ((EndsConfig(), Policy()), (ends, Policy(lr=30.0, weight_decay=0.25))):
        model = Transformer(shape, load_scheme("value_embeddings"), ends=chosen)
        policies = {name: policy for name, _, policy in parameter_policies(model)}
        found = {(n.split(".")[-1], p) for n, p in policies.items() if ".value_table." in n}
        assert found == {("weight", expected), ("gate", Policy(weight_decay=0.0))}
        assert policies["target_embedding.weight"] == expected


def test_layers_that_are_called_without_tokens_say_so(make_model):
    model = make_model("value_embeddings")
    stack = model.encoder
    state = stack.layers[0](stack.stream.open(torch.randn(1, 2, 16).double()), Inputs())
    with pytest.raises(ConfigError, match="value embeddings read tokens, and were given none"):
        stack.layers[1](state, Inputs())
