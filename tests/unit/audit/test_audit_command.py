"""`deepnet audit`: exit codes, JSON of the promised form, and what a factory may return."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepnet.audit.factory import build_from_factory
from deepnet.cli.main import build_app
from deepnet.errors import ConfigError

FACTORIES = """
import defects, torch
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig
shape = defects.Shape(2, 2)
def right(): return defects.correct(shape), defects.inputs(shape)
def wrong(): return defects.vocabulary_scaled(shape), defects.inputs(shape)
def bare(): return torch.nn.TransformerEncoderLayer(8, 2, 16)
def nothing(): return 3
def mixed():
    config = TransformerConfig(architecture="encoder_only", encoder_layers=2, decoder_layers=0,
                               d_model=8, ffn_dim=16, num_heads=2, vocab_size=20)
    return Transformer(config, load_scheme("hyper_connections")), (torch.ones(1, 3).long(),)
value = 3
"""


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audited_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(*arguments: str):
    return CliRunner().invoke(build_app(), ["audit", *arguments])


def test_a_model_without_findings_ends_with_0_and_one_with_findings_with_1():
    assert run("audited_factories:right", "--claims", "deepnorm").exit_code == 0
    assert run("audited_factories:wrong", "--claims", "deepnorm").exit_code == 1
    assert run("audited_factories:wrong").exit_code == 0  # no claim, nothing wrong under any scheme
    assert run("audited_factories:bare").exit_code == 0


def test_a_claim_of_which_nothing_was_located_is_not_passed():
    result = run("audited_factories:mixed", "--claims", "hyper_connections")
    assert result.exit_code == 1
    assert "0 findings; no residual site was located, so that no scheme is checked" in result.stdout
    assert run("audited_factories:mixed").exit_code == 0  # nothing was claimed


def test_the_json_is_of_the_promised_form():
    report = json.loads(run("audited_factories:wrong", "--claims", "deepnorm", "--json").stdout)
    assert list(report) == ["sites", "roles", "findings", "notes", "not_located"]
    assert set(report["sites"][0]) == {"where", "norm", "skip", "branch"}
    assert set(report["roles"][0]) == {"where", "role", "std", "expected"}
    assert set(report["findings"][0]) == {"where", "what", "measured", "expected"}
    assert len(report["sites"]) == 10
    assert len(report["findings"]) == 1


def test_people_read_every_finding():
    text = run("audited_factories:wrong", "--claims", "deepnorm").stdout
    assert "1 findings" in text
    assert "last.weight: the vocabulary matrix is scaled by the decoder's gain" in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("audited_factories", "names no factory"),
        ("no_such_module:build", "cannot be imported"),
        ("audited_factories:missing", "cannot be imported"),
        ("audited_factories:value", "is not a function"),
        ("audited_factories:nothing", "returned int"),
    ],
)
def test_a_wrong_factory_is_refused(name, says):
    with pytest.raises(ConfigError, match=says):
        build_from_factory(name)
