"""What a user of the model relies on: masks, positions, tying, dropout, errors."""

import pytest
import torch
from pydantic import ValidationError

from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.dropout import draw_keep, dropout, dropped_sum
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.positions.sinusoidal import sinusoidal_table


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_the_future_and_padding_change_nothing(make_model, sentences, positions, activation):
    source, keep, target_in = sentences
    model = make_model(positions=positions, activation=activation)
    before = model(source, keep, target_in)
    target_in[:, 3] = 7
    source[1, 3:] = 5
    after = model(source, keep, target_in)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_decoder_alone_sees_no_future_with_a_mask_either(make_model, positions):
    model = make_model(architecture="decoder_only", encoder_layers=0, positions=positions)
    ids = torch.randint(2, 29, (2, 6))
    keep = torch.ones(2, 6, dtype=torch.bool)
    before = model(ids, keep)
    torch.testing.assert_close(before, model(ids), rtol=0, atol=1e-12)
    ids[:, 4] = (ids[:, 4] - 1) % 27 + 2
    after = model(ids, keep)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4], after[:, 4])


def test_padding_before_a_text_changes_nothing_and_leaves_numbers_finite(make_model):
    model = make_model("pre_ln", architecture="decoder_only", encoder_layers=0, positions="rotary")
    ids = torch.randint(2, 29, (1, 4))
    padded = torch.cat([torch.full((1, 3), 29), ids], 1)
    keep = torch.tensor([[False] * 3 + [True] * 4])
    found = model(padded, keep)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:, 3:], model(ids), rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_hypotheses_of_one_step_see_only_their_ancestors(make_model, sentences, positions):
    source, keep, _ = sentences
    model = make_model(positions=positions).eval()
    prefixes = torch.tensor(
        [[29, 3, 5], [29, 3, 9], [29, 4, 9]]
    )  # three hypotheses of each sentence
    cache = model.begin(model.encode(source, keep), keep)
    model.step(prefixes[:1, [0]].expand(3, 1), 0, cache)
    see = torch.zeros(3, 3, 4, dtype=torch.bool)
    see[:, :, 0] = True
    see[:, [0, 1, 2], [1, 2, 3]] = True
    model.step(prefixes[:, 1].expand(3, 3), 1, cache, see)
    see = torch.cat([see, torch.eye(3, dtype=torch.bool).expand(3, 3, 3)], -1)
    found = model.step(prefixes[:, 2].expand(3, 3), 2, cache, see)
    for w in range(3):
        full = model(source, keep, prefixes[w].expand(3, 3))[:, -1]
        torch.testing.assert_close(found[:, w], full, rtol=0, atol=1e-12)


def test_a_cache_can_drop_sentences(make_model, sentences):
    source, keep, target_in = sentences
    model = make_model().eval()
    cache = model.begin(model.encode(source, keep), keep)
    model.step(target_in[:, :1], 0, cache)
    cache.select(torch.tensor([1]))
    found = model.step(target_in[1:2, 1:2], 1, cache)[:, 0]
    full = model(source[1:2], keep[1:2], target_in[1:2, :2])[:, -1]
    torch.testing.assert_close(found, full, rtol=0, atol=1e-12)


def test_sinusoids_have_sines_first_then_cosines():
    table = sinusoidal_table(3, 6)
    assert table[0].tolist() == [0, 0, 0, 1, 1, 1]
    # position 2, frequency 10000^(-2/6): sin and cos of 0.0928317767
    assert table[2, 1].item() == pytest.approx(0.0926985008, abs=1e-7)
    assert table[2, 4].item() == pytest.approx(0.9956942241, abs=1e-7)


def test_sinusoids_of_an_odd_width_have_one_sine_more():
    table = sinusoidal_table(2, 5)
    assert table.shape == (2, 5)
    rates = torch.tensor([1.0, 10000 ** (-2 / 5), 10000 ** (-4 / 5)])
    torch.testing.assert_close(table[1], torch.cat([rates.sin(), rates.cos()[:2]]))


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_the_eps_of_a_recipe_is_that_of_every_norm(make_model, kind):
    model = make_model("peri_ln", norm=kind, norm_eps=0.25)
    found = [module.eps for module in model.modules() if hasattr(module, "eps")]
    assert found
    assert set(found) == {0.25}


def test_each_side_has_a_row_per_id_of_its_own_vocabulary(make_model):
    model = make_model(tie_embeddings="decoder", source_vocab_size=50)
    assert (len(model.source_embedding.weight), len(model.target_embedding.weight)) == (50, 30)
    assert model(torch.tensor([[48]]), None, torch.tensor([[29]])).shape == (1, 1, 29)


def test_sinusoids_grow_with_the_sentence(make_model):
    model = make_model("pre_ln")
    source = torch.randint(2, 29, (1, 700))
    assert torch.isfinite(model(source, None, source)).all()


def test_learned_positions_end_where_they_end(make_model):
    model = make_model(positions="learned", max_positions=8)
    source = torch.randint(2, 29, (1, 9))
    assert model.max_positions == 8
    with pytest.raises(IndexError, match=r"position 8 does not exist.*0 to 7"):
        model(source, None, source)


def test_rotary_scores_depend_on_the_distance_alone(make_model):
    model = make_model("pre_ln", architecture="encoder_only", decoder_layers=0, positions="rotary")
    ids = torch.randint(2, 29, (1, 6))
    whole = model(ids, torch.ones(1, 6, dtype=torch.bool))
    shifted = torch.cat([torch.full((1, 2), 29), ids], 1)
    keep = torch.tensor([[False] * 2 + [True] * 6])
    torch.testing.assert_close(model(shifted, keep)[:, 2:], whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("tying", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tying_decides_how_many_matrices_there_are(make_model, tying, matrices):
    counts = count_parameters(make_model(tie_embeddings=tying))
    assert counts["embeddings"] == matrices * 30 * 16


def test_parameter_count_is_the_sum_of_its_parts(make_model):
    # per encoder layer 4 d^2 + 2 d f + biases (4 d + f + d) + two norms (4 d); a decoder layer has 4 d^2 + 6 d more
    d, f = 16, 32
    encoder = 2 * (4 * d * d + 2 * d * f + 9 * d + f)
    counts = count_parameters(make_model())
    assert counts["encoder"] == encoder
    assert counts["decoder"] == encoder + 2 * (4 * d * d + 6 * d)
    assert counts["total"] == counts["encoder"] + counts["decoder"] + 30 * d


def test_padding_has_a_zero_row_that_never_learns_and_no_logit(make_model, sentences):
    model = make_model()
    logits = model(*sentences)
    assert logits.shape == (3, 4, 29)
    logits.logsumexp(-1).sum().backward()
    assert model.target_embedding.weight[29].abs().max() == 0
    assert model.target_embedding.weight.grad[29].abs().max() == 0


def test_dropout_keeps_the_mean_zeroes_at_its_rate_and_is_off_in_evaluation():
    x = torch.ones(1000, 999)
    found = dropout(x, 0.3)
    # 999,000 draws: the share of zeros has a standard error of 0.00046
    assert (found == 0).float().mean().item() == pytest.approx(0.3, abs=0.002)
    assert found.max().item() == pytest.approx(1 / 0.7, rel=1e-6)
    assert dropout(x, 0.3, training=False) is x


def test_dropouts_mask_is_that_of_the_generator_and_its_gradient_too():
    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    found = dropout(x, 0.5)
    torch.manual_seed(5)
    keep = draw_keep(63, 0.5).view(7, 9)
    torch.testing.assert_close(found, 2 * x * keep)
    found.sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * keep.double())


@pytest.mark.parametrize("skip_scale", [1.0, 2.5])
@pytest.mark.parametrize("branch_scale", [1.0, 0.4])
def test_a_dropped_sum_is_the_sum_with_what_dropout_leaves(skip_scale, branch_scale):
    skip, y = (torch.randn(7, 9, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.manual_seed(5)
    found = dropped_sum(skip, y, 0.2, skip_scale=skip_scale, branch_scale=branch_scale)
    torch.manual_seed(5)
    keep = draw_keep(63, 0.2).view(7, 9) / 0.8
    torch.testing.assert_close(found, skip_scale * skip + branch_scale * keep * y)
    found.sum().backward()
    torch.testing.assert_close(skip.grad, torch.full_like(skip, skip_scale))
    torch.testing.assert_close(y.grad, branch_scale * keep.double())


@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln", "peri_ln", "branchnorm", "rezero"])
def test_a_site_drops_and_adds_what_it_does_in_two_steps(make_model, scheme):
    site = make_model(scheme, dropout=0.3).encoder.layers[1].sublayers["ffn"].residual
    skip, y = torch.randn(2, 5, 7, 16, dtype=torch.float64)
    torch.manual_seed(5)
    found = site(skip, y)
    torch.manual_seed(5)
    torch.testing.assert_close(found, site.add(skip, site.leave(y)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"d_model": 30, "num_heads": 4}, "d_model 30 is not a multiple of num_heads 4"),
        ({"d_model": 6, "num_heads": 2, "positions": "rotary"}, "even head size"),
        ({"decoder_layers": 0}, "decoder_layers 0 does not fit"),
        ({"architecture": "encoder_only"}, "decoder_layers 6 does not fit"),
        ({"source_vocab_size": 9}, "cannot share rows"),
        ({"dropout": 1.0}, "less than 1"),
    ],
)
def test_impossible_shapes_are_refused(shape, words):
    with pytest.raises(ValidationError, match=words):
        TransformerConfig(**shape)


@pytest.mark.parametrize("size", [0, 2])
def test_a_model_needs_a_vocabulary(size):
    with pytest.raises(ConfigError, match=f"vocab_size is {size}; expected at least 3"):
        Transformer(TransformerConfig(vocab_size=size), load_scheme("deepnorm"))
    assert Transformer(TransformerConfig(vocab_size=3), load_scheme("deepnorm"))
