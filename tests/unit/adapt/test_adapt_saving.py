"""Saving adopted models: the scheme comes back, a stock class never loses it, and folding is exact or refused."""

import json
import sys

import pytest
import torch
from torch import nn

import deepnet
from deepnet import apply_scheme, from_pretrained
from deepnet.adapt.folded import folded, save_folded
from deepnet.anatomy.base import Sited
from deepnet.errors import AdaptError, CheckpointError, ExportError

HUGGINGFACE = ["Marian", "BART", "BERT", "RoBERTa", "OPT", "GPT-2", "T5", "Llama"]


@torch.no_grad()
def move(model: nn.Module, step: int = 1000) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn_like(parameter)
    model.deepnet.advance(step)
    return model


@pytest.mark.parametrize("name", HUGGINGFACE)
@pytest.mark.parametrize(
    "scheme", ["branchnorm", "rezero", "admin", "layerscale", "prores", "gpas"]
)
def test_the_scheme_comes_back(zoo, tmp_path, name, scheme):
    model = zoo.MODELS[name]()
    apply_scheme(model, scheme, batches=[zoo.inputs(model)])
    move(model)
    model.save_pretrained(tmp_path)
    restored = from_pretrained(tmp_path)
    assert type(restored) is type(model)
    assert restored.deepnet.step == 1000
    assert torch.equal(zoo.outputs(restored), zoo.outputs(model))
    assert restored.config.deepnet == model.config.deepnet
    restored.save_pretrained(tmp_path / "again")
    assert torch.equal(zoo.outputs(from_pretrained(tmp_path / "again")), zoo.outputs(model))


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_a_stock_class_refuses_it(zoo, tmp_path, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "deepnorm")
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path)


def test_kept_weights_come_back_with_their_eps(zoo, tmp_path):
    model = zoo.bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    apply_scheme(model, "deepnorm", initialize=False)
    model.save_pretrained(tmp_path)
    assert torch.equal(zoo.outputs(from_pretrained(tmp_path)), zoo.outputs(model))


def test_what_generate_was_set_to_comes_back(zoo, tmp_path):
    model = zoo.marian()
    apply_scheme(model, "deepnorm")
    model.generation_config.num_beams = 3
    model.save_pretrained(tmp_path)
    assert from_pretrained(tmp_path).generation_config.num_beams == 3
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        from_pretrained(tmp_path)


def test_weights_saved_in_several_files_come_back(zoo, tmp_path):
    model = zoo.bert()
    apply_scheme(model, "deepnorm")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert torch.equal(zoo.outputs(from_pretrained(tmp_path)), zoo.outputs(model))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        from_pretrained(tmp_path)


def saved_bert(zoo, folder):
    model = zoo.bert()
    apply_scheme(model, "deepnorm")
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def test_a_class_that_the_folder_names_is_imported_only_where_it_is_trusted(
    zoo, tmp_path, monkeypatch
):
    config = saved_bert(zoo, tmp_path)
    source = "import deepnet.schemes.deepnorm as own\n\n\nclass Scheme(own.Scheme):\n    pass\n"
    (tmp_path / "adopted_notes.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config["deepnet"]["scheme"]["name"] = "adopted_notes:Scheme"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="trust_code='adopted_notes:Scheme'"):
        from_pretrained(tmp_path)
    assert "adopted_notes" not in sys.modules
    model = from_pretrained(tmp_path, trust_code="adopted_notes:Scheme")
    assert type(model.deepnet.scheme).__module__ == "adopted_notes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 10**9}, "no model can be built|larger"),
        ({"num_hidden_layers": 10**9}, "larger"),
        ({"vocab_size": 10**12}, "no model can be built|larger"),
        ({"architectures": ["pipeline"]}, "no model class pipeline"),
        ({"architectures": ["AutoModel"]}, "no model class AutoModel"),
        ({"architectures": "BertModel"}, "expected one"),
    ],
)
def test_a_config_that_asks_for_another_model_is_refused_before_it_is_built(
    zoo, tmp_path, change, words
):
    config = saved_bert(zoo, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=words):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors"])
def test_an_index_cannot_name_a_file_outside_its_folder(zoo, tmp_path, name):
    (tmp_path / "b").mkdir()
    saved_bert(zoo, tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"weight": name}}
    (tmp_path / "b" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside the folder"):
        from_pretrained(tmp_path / "b")


def test_a_folder_without_a_scheme_or_with_a_damaged_one_is_refused(zoo, tmp_path):
    with pytest.raises(CheckpointError, match=r"no readable config\.json"):
        from_pretrained(tmp_path)
    model = zoo.bert()
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="no 'deepnet' part"):
        from_pretrained(tmp_path)
    apply_scheme(model, "deepnorm")
    model.save_pretrained(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    for change, reason in (
        ({"format_version": 99}, "format version 99"),
        ({"scheme": {"name": "deepnrom"}}, "did you mean 'deepnorm'"),
        ({"scheme": {"name": "pre_ln"}}, "does not belong to this model"),
        ({"schema": 1}, "unknown key"),
    ):
        broken = {**good, "deepnet": {**good["deepnet"], **change}}
        (tmp_path / "config.json").write_text(json.dumps(broken))
        with pytest.raises(CheckpointError, match=reason):
            from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(good))
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        from_pretrained(tmp_path)


FOLDABLE = [
    ("BART", "deepnorm"),
    ("BERT", "deepnorm"),
    ("RoBERTa", "admin"),
    ("OPT, norm after", "deepnorm"),
    ("Marian", "branchnorm"),
    ("GPT-2", "layernorm_scaling"),
    ("T5", "layernorm_scaling"),
    ("Llama", "layernorm_scaling"),
    ("Llama", "layerscale"),
    ("GPT-2", "layerscale"),
    ("OPT", "prores"),
]


@pytest.mark.parametrize(("name", "scheme"), FOLDABLE)
def test_folded_models_are_read_by_the_stock_class(zoo, tmp_path, name, scheme):
    model = zoo.MODELS[name]()
    apply_scheme(model, scheme, batches=[zoo.inputs(model)])
    move(model)
    save_folded(model, tmp_path)
    stock = type(zoo.MODELS[name]()).from_pretrained(tmp_path)
    assert "deepnet" not in json.loads((tmp_path / "config.json").read_text())
    torch.testing.assert_close(zoo.outputs(stock), zoo.outputs(model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["nn.Transformer", "nn.TransformerEncoder", "Marian"])
def test_folded_in_memory_is_a_stock_model(zoo, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "deepnorm")
    move(model)
    stock = folded(model)
    assert not any(isinstance(module, Sited) for module in stock.modules())
    assert {type(m).__module__.partition(".")[0] for m in stock.modules()} <= {
        "torch",
        "transformers",
    }
    torch.testing.assert_close(zoo.outputs(stock), zoo.outputs(model), rtol=0, atol=1e-12)
    if isinstance(stock, nn.Transformer):
        plain = zoo.torch_transformer()
        plain.encoder.norm = plain.decoder.norm = None
        plain.load_state_dict(stock.state_dict())  # eps apart, the very same class


def test_what_cannot_be_folded_is_refused(zoo, tmp_path):
    marian = zoo.marian()
    apply_scheme(marian, "deepnorm")
    with pytest.raises(ExportError, match=r"needs eps .*fixed positions"):
        save_folded(marian, tmp_path)
    llama = zoo.llama()
    apply_scheme(llama, "deepnorm")
    with pytest.raises(ExportError, match="one pre-norm and nothing else"):
        folded(llama)
    gated = zoo.llama()
    apply_scheme(gated, "gpas")
    move(gated)
    with pytest.raises(ExportError, match="a scaled skip of a pre-norm site"):
        folded(gated)
    with pytest.raises(ExportError, match="carries no scheme"):
        folded(zoo.bert())
    assert not any(tmp_path.iterdir())


def test_gated_skips_of_a_post_norm_model_fold(zoo, tmp_path):
    model = zoo.bart()
    apply_scheme(model, "gpas", options={"base": "deepnorm"})
    move(model)
    save_folded(model, tmp_path)
    stock = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(zoo.outputs(stock), zoo.outputs(model), rtol=0, atol=1e-12)


def test_kept_weights_fold_back_although_eps_is_off_in_its_last_bit(zoo, tmp_path):
    skip = 6**0.25  # deepnorm's of three layers
    eps = next(e for e in (k * 1e-7 for k in range(1, 999)) if e * skip**2 / skip**2 != e)
    model = zoo.bert(layer_norm_eps=eps, num_hidden_layers=3)
    before = zoo.outputs(model)
    apply_scheme(model, "deepnorm", initialize=False)
    save_folded(model, tmp_path)
    restored = type(zoo.bert()).from_pretrained(tmp_path)
    torch.testing.assert_close(zoo.outputs(restored), before, rtol=0, atol=1e-12)


def test_a_factor_that_needs_a_gain_is_refused_where_norms_have_none(zoo):
    """An OPT whose norms have no tables: what a norm would have to emit cannot be left out of the function."""
    bare = {"layer_norm_elementwise_affine": False}
    before = zoo.opt(**bare)
    with pytest.raises(AdaptError, match="has no gain to make up for it"):
        apply_scheme(before, "layernorm_scaling", initialize=False)
    apply_scheme(before, "layernorm_scaling", initialize=True)
    with pytest.raises(ExportError, match="without gain"):
        folded(before)
    tied = zoo.opt(before=False, **bare)
    apply_scheme(tied, "deepnorm", initialize=True)
    with pytest.raises(ExportError, match="without gain"):
        folded(tied)
    untied = zoo.opt(before=False, tie_word_embeddings=False, **bare)
    apply_scheme(untied, "deepnorm", initialize=True)
    move(untied)
    torch.testing.assert_close(zoo.outputs(folded(untied)), zoo.outputs(untied), rtol=0, atol=1e-12)


def test_the_names_are_public():
    assert {"apply_scheme", "from_pretrained"} <= set(deepnet.__all__)


def test_a_vocabulary_resized_under_unit_rows_is_not_saved_as_what_it_is_not(zoo, tmp_path):
    model = zoo.llama()
    apply_scheme(model, "deepnorm", ends={"rows": "unit"})
    model.save_pretrained(tmp_path / "before")
    model.resize_token_embeddings(50)
    with pytest.raises(AdaptError, match="its vocabulary is now a Linear without them"):
        model.save_pretrained(tmp_path / "after")
