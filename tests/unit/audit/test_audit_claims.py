"""What a claim is made of besides its name: the tying that the model has, and the optimiser that it is for."""

import defects
import pytest
import torch
from defects import Shape
from torch import nn
from typer.testing import CliRunner

import deepnet
from deepnet.cli.main import build_app
from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

IDS, TARGET = torch.randint(2, 50, (2, 7)), torch.randint(2, 50, (2, 5))
SIZES = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 32, "ffn_dim": 64}
SIZES |= {"num_heads": 2, "vocab_size": 60}
ESSAY = load_scheme("deepnorm", {"convention": "essay"})


def ours(scheme, tying="all", **changed) -> Transformer:
    config = TransformerConfig(**{**SIZES, **changed}, tie_embeddings=tying)
    return Transformer(config, load_scheme(scheme))


def expected(report, role: str) -> list[float]:
    return [found.expected for found in report.roles if found.role == role]


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_a_t_fixup_is_passed_in_every_tying(tying):
    """The vocabulary has (9 M)^(-1/4) d^(-1/2) where it is the decoder's embedding, else d^(-1/2)."""
    report = deepnet.audit(ours("t_fixup", tying), (IDS, None, TARGET), claims="t_fixup")
    assert report.findings == report.not_located == []
    factor = 1.0 if tying == "none" else 27**-0.25
    assert expected(report, "vocabulary") == [pytest.approx(factor * 32**-0.5)]


def test_each_stack_s_embedding_is_held_against_its_own_stack():
    model = ours("t_fixup", "decoder", encoder_layers=6, decoder_layers=2)
    report = deepnet.audit(model, (IDS, None, TARGET), claims="t_fixup")
    assert report.findings == []
    stds = [pytest.approx(layers**-0.25 * 32**-0.5) for layers in (54, 18)]
    assert expected(report, "embedding") == stds


def test_rows_are_tied_where_the_memory_is_one_whatever_parameters_hold_it():
    model = ours("t_fixup", "all")
    model.source_embedding = type(model.target_embedding)(60, 32)
    model.source_embedding.weight = nn.Parameter(model.target_embedding.weight.data)
    report = deepnet.audit(model, (IDS, None, TARGET), claims="t_fixup")
    assert report.findings == report.not_located == []
    assert len(expected(report, "embedding")) == 1


def tied_by_memory(shape: Shape) -> defects.Model:
    """A correct model whose last matrix is another parameter that shows most of the embedding's memory."""
    model = defects.correct(shape)
    model.last.weight = nn.Parameter(model.table.weight.data[1:])
    return model


def test_a_view_of_the_embedding_is_the_embedding():
    shape = Shape(0, 3)
    report = deepnet.audit(tied_by_memory(shape), defects.inputs(shape), claims="deepnorm")
    assert report.findings == report.not_located == []
    tables = [found.where for found in report.roles if found.role in ("embedding", "vocabulary")]
    assert tables == ["table.weight", "table.weight"]


def test_a_vocabulary_of_its_own_is_not_taken_for_a_tied_one():
    model = ours("t_fixup", "none")
    with torch.no_grad():
        model.vocabulary.rows.weight.copy_(model.target_embedding.weight)
    findings = deepnet.audit(model, (IDS, None, TARGET), claims="t_fixup").findings
    assert [one.where for one in findings] == ["vocabulary.rows.weight"]
    assert findings[0].expected == pytest.approx(32**-0.5)


@pytest.mark.parametrize("std", [32**-0.5, 2 * 27**-0.25 * 32**-0.5])
def test_embeddings_that_are_part_of_the_scheme_are_compared(std):
    """A T-Fixup whose embeddings were not scaled, or by another factor, is none."""
    model = ours("t_fixup", "all")
    nn.init.normal_(model.target_embedding.weight, std=std)
    findings = deepnet.audit(model, (IDS, None, TARGET), claims="t_fixup").findings
    assert [one.where for one in findings] == ["target_embedding.weight"] * 2  # in both its uses
    assert findings[0].expected == pytest.approx(27**-0.25 * 32**-0.5)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only", "decoder_only"])
@pytest.mark.parametrize("family", ["sgd", "adam", "lamb"])
def test_an_essay_s_deepnorm_is_passed_for_its_own_optimiser_alone(family, architecture):
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 3,
        "decoder_layers": 0 if architecture == "encoder_only" else 3,
    }
    config = TransformerConfig(**{**SIZES, **layers}, architecture=architecture)
    model = Transformer(config, ESSAY, optimizer_family=family)
    inputs = (IDS, None, TARGET) if architecture == "encoder_decoder" else (IDS,)
    for claimed in ("sgd", "adam", "lamb"):
        report = deepnet.audit(model, inputs, claims=ESSAY, optimizer_family=claimed)
        assert bool(report.findings) == (claimed != family)


def test_a_wrong_model_of_a_scheme_with_matrices_of_zeros_is_found():
    model = ours("r_fixup")
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.sublayers["self"].branch.q.weight.mul_(2.0)
    findings = deepnet.audit(model, (IDS, None, TARGET), claims="r_fixup").findings
    assert [one.where.split(":")[0] for one in findings] == ["encoder, q of all 3 self sites"]


def test_a_scale_that_the_score_product_carries_is_told():
    model = ours("deepnorm")
    assert not deepnet.audit(model, (IDS, None, TARGET), claims="deepnorm").findings
    for sublayer in model.sites():
        sublayer.branch.multiplier = 1.0
    findings = deepnet.audit(model, (IDS, None, TARGET), claims="deepnorm").findings
    assert findings
    assert all("scores" in str(one) for one in findings)


FACTORIES = """
import torch
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig
def essay(family="sgd"):
    config = TransformerConfig(architecture="encoder_only", encoder_layers=4, decoder_layers=0, d_model=32,
                               ffn_dim=64, num_heads=2, vocab_size=60)
    model = Transformer(config, load_scheme("deepnorm", {"convention": "essay"}), optimizer_family=family)
    return model, torch.randint(2, 50, (2, 7))
def of_adam():
    return essay("adam")
"""


def test_the_command_takes_options_of_the_scheme_and_the_optimiser(tmp_path, monkeypatch):
    (tmp_path / "essay_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments: str, factory: str = "essay"):
        return CliRunner().invoke(build_app(), ["audit", f"essay_factories:{factory}", *arguments])

    claim = ("--claims", "deepnorm", "scheme.convention=essay")
    assert run(*claim, "--optimizer", "sgd").exit_code == 0
    assert run(*claim).exit_code == 1
    assert run(*claim, "--optimizer", "muon", factory="of_adam").exit_code == 0  # Adam's family
    assert isinstance(run("scheme.convention=essay").exception, ConfigError)
