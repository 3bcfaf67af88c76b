"""What [ends] chooses of embeddings and vocabulary, composed with schemes, and refused where it contradicts one."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from deepnet.bundle import load_bundle, save_bundle
from deepnet.config import build
from deepnet.errors import ConfigError
from deepnet.folding.fold import fold
from deepnet.schemes import deepnorm
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.transformer.embeddings import TokenEmbedding, VocabularyProjection
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.initialize import RoleReport, initialization_report, parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

SHAPE = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "ffn_dim": 64, "num_heads": 4}
FIXED = {
    "scale_norm": {"rows", "std"},
    "t_fixup": {"rows", "std"},
    "completep": {"rows", "std", "lr", "weight_decay"},
    "ngpt": {"rows", "std", "lr", "weight_decay"},
    "deepscale_lm": {"rows", "std"},
}
CHOICES = {
    "rows": lambda name: {"rows": "plain" if name == "scale_norm" else "unit"},
    "std": lambda name: {"embedding_std": 0.5},
    "lr": lambda name: {"embedding_lr_multiplier": 7.0},
    "weight_decay": lambda name: {"embedding_weight_decay_multiplier": 0.5},
}

TAKEN = {
    "rows": lambda ends: ends.unit_rows,
    "std": lambda ends: ends.init["embedding"].std(1, 1) == 0.5,
    "lr": lambda ends: ends.policy["embedding"].lr == 7.0,
    "weight_decay": lambda ends: ends.policy["embedding"].weight_decay == 0.5,
}


def made(scheme="deepnorm", *, ends=None, seed=1, **shape) -> Transformer:
    torch.manual_seed(seed)
    kind = load_scheme(scheme)
    if "encoder_decoder" not in kind.architectures:
        (architecture,) = kind.architectures
        absent = "encoder" if architecture == "decoder_only" else "decoder"
        shape = {"architecture": architecture, f"{absent}_layers": 0, **shape}
    config = TransformerConfig(**{**SHAPE, "vocab_size": 60, "dropout": 0.0, **shape})
    return Transformer(config, kind, ends=build(EndsConfig, ends or {}))


def logits(model: Transformer, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(2, 59, (3, 7), generator=generator) for _ in range(2))
    with torch.no_grad():
        return model.eval()(source, None, target)


def end_stds(model: Transformer) -> dict[tuple[str, str], float]:
    rows = initialization_report(model)
    return {
        (r.stack, r.role): r.measured_std for r in rows if r.role in ("embedding", "vocabulary")
    }


def test_the_report_counts_what_is_drawn_and_not_the_zeros_of_padding() -> None:
    model = made(tie_embeddings="none")
    counts = {row.role: row.count for row in initialization_report(model) if row.stack == "decoder"}
    d_model, ffn_dim = model.config.d_model, model.config.ffn_dim
    layers = model.config.decoder_layers
    assert counts["embedding"] == 59 * d_model
    assert counts["fc1"] == layers * d_model * ffn_dim


def test_weights_that_start_at_zero_are_no_standard_error_off_and_others_infinitely_many() -> None:
    row = RoleReport(stack="encoder", role="out", count=9, expected_std=0.0, measured_std=0.0)
    assert row.standard_errors == 0.0
    assert replace(row, measured_std=1e-9).standard_errors == math.inf


def policies(model: Transformer) -> dict[str, Policy]:
    return {name: policy for name, _, policy in parameter_policies(model)}


@dataclass(frozen=True, kw_only=True)
class UnitRowsOfTheSource(deepnorm.Scheme):
    """A scheme whose encoder alone reads rows of unit length."""

    def stack(self, context):
        plan = super().stack(context)
        return replace(plan, ends=replace(plan.ends, unit_rows=context.stack == "encoder"))


def test_each_embedding_is_that_of_its_stack() -> None:
    config = TransformerConfig(**SHAPE, vocab_size=60, tie_embeddings="none")
    model = Transformer(config, UnitRowsOfTheSource())
    ids = torch.arange(2, 10)
    source, target = (
        table(ids).norm(dim=-1) for table in (model.source_embedding, model.target_embedding)
    )
    torch.testing.assert_close(source, torch.ones(8))
    assert (target - 1).abs().max() > 0.01
    with pytest.raises(ConfigError, match="treats the two stacks' embeddings differently"):
        Transformer(config.model_copy(update={"tie_embeddings": "all"}), UnitRowsOfTheSource())


def test_no_choice_is_the_scheme_s_own_to_the_bit() -> None:
    torch.manual_seed(1)
    config = TransformerConfig(**SHAPE, vocab_size=60, dropout=0.0)
    assert torch.equal(logits(Transformer(config, load_scheme("deepnorm"))), logits(made()))


def test_rows_of_unit_length_are_an_independent_fixnorm_with_its_gradient() -> None:
    torch.manual_seed(1)
    embedding = TokenEmbedding(20, 8, unit_rows=True).double()
    nn.init.normal_(embedding.weight)
    projection = VocabularyProjection(embedding, tied=True)
    ids, x = torch.randint(0, 19, (4, 5)), torch.randn(4, 5, 8, dtype=torch.float64)
    up_rows, up_logits = torch.randn(4, 5, 8).double(), torch.randn(4, 5, 19).double()
    ((embedding(ids) * up_rows).sum() + (projection(x) * up_logits).sum()).backward()

    rows = embedding.weight.detach()
    length = rows.pow(2).sum(1, keepdim=True).sqrt()
    unit = rows / length
    assert torch.allclose(embedding(ids), unit[ids], atol=1e-12)
    assert torch.allclose(projection(x), x @ unit[:-1].T, atol=1e-12)
    towards = torch.zeros_like(rows).index_add(0, ids.flatten(), up_rows.flatten(0, 1))
    towards[:-1] += torch.einsum("btv,btd->vd", up_logits, x)
    tangent = (towards - (towards * unit).sum(1, keepdim=True) * unit) / length
    assert torch.allclose(embedding.weight.grad[:-1], tangent[:-1], atol=1e-12)


def test_unit_rows_begin_small_and_enter_at_unit_length() -> None:
    model = made(ends={"rows": "unit"})
    assert end_stds(model)["encoder", "embedding"] == pytest.approx(0.01 / 3**0.5, rel=0.05)
    lengths = model.target_embedding.rows()[:-1].norm(dim=1)
    assert torch.allclose(lengths, torch.ones(59))


def test_a_std_is_drawn_and_the_vocabulary_follows_the_embedding_unless_it_has_its_own() -> None:
    both = end_stds(made(ends={"embedding_std": 0.5}, tie_embeddings="none", vocab_size=2000))
    assert both["encoder", "embedding"] == pytest.approx(0.5, rel=0.02)
    assert both["decoder", "vocabulary"] == pytest.approx(0.5, rel=0.02)
    apart = {"embedding_std": 0.5, "vocabulary_std": 0.1}
    found = end_stds(made(ends=apart, tie_embeddings="none", vocab_size=2000))
    assert found["decoder", "embedding"] == pytest.approx(0.5, rel=0.02)
    assert found["decoder", "vocabulary"] == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_multipliers_reach_the_optimiser_for_every_matrix_of_the_ends_and_no_other(tying) -> None:
    ends = {"embedding_lr_multiplier": 30.0, "embedding_weight_decay_multiplier": 0.5}
    found = policies(made(ends=ends, tie_embeddings=tying))
    at_the_ends = {name for name in found if "embedding" in name or "vocabulary" in name}
    assert len(at_the_ends) == {"all": 1, "decoder": 2, "none": 3}[tying]
    plain = policies(made(tie_embeddings=tying))
    for name, policy in found.items():
        chosen = Policy(lr=30.0, weight_decay=0.5)
        assert policy == (chosen if name in at_the_ends else plain[name])


def test_the_vocabulary_of_its_own_has_its_own_multiplier() -> None:
    ends = {"embedding_lr_multiplier": 30.0, "vocabulary_lr_multiplier": 3.0}
    found = policies(made(ends=ends, tie_embeddings="none"))
    assert found["target_embedding.weight"].lr == found["source_embedding.weight"].lr == 30.0
    assert found["vocabulary.rows.weight"].lr == 3.0


@pytest.mark.parametrize("tying", ["all", "decoder"])
def test_a_key_of_the_vocabulary_has_no_effect_where_it_is_tied(tying) -> None:
    message = r"'ends.vocabulary_lr_multiplier' has no effect.*ends.embedding_lr_multiplier"
    with pytest.raises(ConfigError, match=message):
        made(ends={"vocabulary_lr_multiplier": 3.0}, tie_embeddings=tying)


@pytest.mark.parametrize("key", CHOICES)
@pytest.mark.parametrize("scheme", list_schemes())
def test_a_choice_is_taken_by_every_scheme_or_contradicts_what_it_fixes(scheme, key) -> None:
    choice = CHOICES[key](scheme)
    if key not in FIXED.get(scheme, ()):
        assert TAKEN[key](made(scheme, ends=choice).stacks()[-1].plan.ends)
        return
    with pytest.raises(ConfigError, match=f"fixes the {key}.*leave out ends"):
        made(scheme, ends=choice)


def test_a_choice_that_is_what_the_scheme_fixes_is_no_contradiction() -> None:
    same = made("scale_norm", ends={"rows": "unit"})
    assert torch.equal(logits(same), logits(made("scale_norm")))


def test_r_fixup_fixes_its_zero_vocabulary_where_that_is_not_tied() -> None:
    made("r_fixup", ends={"rows": "unit"})
    with pytest.raises(ConfigError, match="fixes the rows"):
        made("r_fixup", ends={"rows": "unit"}, tie_embeddings="none")


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln", "post_ln", "rezero"])
def test_unit_rows_fold_to_plain_ones(scheme, tying) -> None:
    model = made(scheme, ends={"rows": "unit"}, tie_embeddings=tying).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    plain = fold(model)
    assert plain.ends == EndsConfig()
    assert not any(stack.plan.ends.unit_rows for stack in plain.stacks())
    assert (logits(plain) - logits(model)).abs().max() < 1e-12


def test_a_bundle_keeps_the_choice_and_one_without_it_is_the_scheme_s_own(tmp_path) -> None:
    model = made(ends={"rows": "unit", "embedding_lr_multiplier": 3.0})
    save_bundle(tmp_path / "bundle", model)
    loaded = load_bundle(tmp_path / "bundle").model
    assert loaded.ends == model.ends
    assert torch.equal(logits(loaded), logits(model))
    file = tmp_path / "bundle" / "config.json"
    config = json.loads(file.read_text())
    del config["ends"]
    (tmp_path / "bundle" / "SHA256SUMS").unlink()
    file.write_text(json.dumps(config))
    before = load_bundle(tmp_path / "bundle").model
    assert before.ends == EndsConfig()
    assert not before.target_embedding.unit_rows
