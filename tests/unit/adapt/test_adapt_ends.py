"""Ends chosen for other people's models: what is drawn, reported, undone, saved, folded and refused."""

import copy
import json
import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from deepnet import apply_scheme, from_pretrained, parameter_groups
from deepnet.adapt.folded import folded, save_folded
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError, ConfigError
from deepnet.schemes import pre_ln
from deepnet.schemes.base import Ends, StackContext
from deepnet.transformer.ends import EndsConfig

FAMILIES = ["Marian", "BART", "BERT", "RoBERTa", "OPT", "GPT-2", "T5", "Llama"]
UNIT = {"rows": "unit"}
CHOICES = [UNIT, {"embedding_std": 0.5}, {"rows": "unit", "embedding_std": 0.2}]
PAIRED = {"Marian": "model.shared", "BART": "model.shared", "T5": "shared"}
PAIRED |= {"BERT": "bert.embeddings.word_embeddings"}
PAIRED |= {"RoBERTa": "roberta.embeddings.word_embeddings"}
PAIRED |= {"OPT": "model.decoder.embed_tokens", "GPT-2": "transformer.wte"}
PAIRED |= {"Llama": "model.embed_tokens"}
"""Where each family has its token embedding, by name."""


def rows_of(model: nn.Module, name: str) -> torch.Tensor:
    return model.get_submodule(PAIRED[name]).weight.detach()


def plain_scheme(model: nn.Module) -> str:
    """Return the scheme whose sites are the stock ones, so that folding is exact."""
    placement = next(locate(model).sites()).part.placement
    return "post_ln" if placement == "post" else "pre_ln"


@torch.no_grad()
def move(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn_like(parameter)
    return model


# What is drawn and reported -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_drawn_with_the_chosen_std_and_padding_s_row_is_zero(zoo, name):
    model = zoo.MODELS[name]()
    report = apply_scheme(model, "deepnorm", ends={"embedding_std": 0.5})
    rows = rows_of(model, name)
    padded = model.get_submodule(PAIRED[name]).padding_idx
    drawn = rows if padded is None else torch.cat([rows[:padded], rows[padded + 1 :]])
    assert padded is None or not rows[padded].any()
    assert float(drawn.std()) == pytest.approx(0.5, rel=5 / math.sqrt(2 * drawn.numel()))
    line = next(weight for weight in report.weights if weight.role == "embedding")
    assert (line.expected, line.layer, line.shape) == (0.5, 0, (40, 16))
    assert line.after == pytest.approx(float(drawn.std(correction=0)), rel=1e-12)
    assert line.where == f"{PAIRED[name]}.weight"


@pytest.mark.parametrize("name", FAMILIES)
def test_unit_rows_begin_small_and_are_looked_up_at_unit_length(zoo, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "deepnorm", ends=UNIT)
    rows = rows_of(model, name)
    assert float(rows.abs().max()) <= 0.01
    assert float(rows.std()) == pytest.approx(0.01 / 3**0.5, rel=0.1)
    table = model.get_submodule(PAIRED[name])
    looked_up = table(torch.arange(3, 39)) / vars(table).get("embed_scale", 1.0)
    torch.testing.assert_close(looked_up.norm(dim=1), torch.ones(36).double(), rtol=0, atol=1e-12)
    projected = model.get_output_embeddings()(torch.eye(16).double())
    bias = model.get_output_embeddings().bias
    projected = projected if bias is None else projected - bias
    lengths = projected.norm(dim=0)[3:39]
    torch.testing.assert_close(lengths, torch.ones(36).double(), rtol=0, atol=1e-12)


def test_a_vocabulary_of_its_own_follows_unless_it_has_its_own_std(zoo):
    for ends, embedding, vocabulary in (
        ({"embedding_std": 0.5}, 0.5, 0.5),
        ({"embedding_std": 0.5, "vocabulary_std": 0.1}, 0.5, 0.1),
        ({"vocabulary_std": 0.1}, None, 0.1),
    ):
        model = zoo.llama()
        before = rows_of(model, "Llama").clone()
        report = apply_scheme(model, "deepnorm", ends=ends)
        stds = {w.role: w.after for w in report.weights if w.layer == 0}
        assert set(stds) == {"vocabulary"} | ({"embedding"} if embedding else set())
        assert stds["vocabulary"] == pytest.approx(vocabulary, rel=0.15)
        assert torch.equal(rows_of(model, "Llama"), before) == (embedding is None)
    assert report.notes == ("embeddings and positions are left as they are",)


def test_stacks_with_vocabularies_of_their_own_are_drawn_apart(zoo):
    apart = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40}
    report = apply_scheme(zoo.marian(**apart), "deepnorm", ends={"embedding_std": 0.5})
    drawn = [(w.stack, w.where) for w in report.weights if w.role == "embedding"]
    assert drawn == [
        ("encoder", "model.encoder.embed_tokens.weight"),
        ("decoder", "model.decoder.embed_tokens.weight"),
    ]


def test_the_report_says_what_became_of_the_ends(zoo):
    report = apply_scheme(zoo.bart(), "deepnorm", ends={**UNIT, "embedding_lr_multiplier": 30.0})
    unit = [change.where for change in report.modules if "rows at unit length" in change.what]
    assert unit == [
        "model.shared",
        "model.encoder.embed_tokens",
        "model.decoder.embed_tokens",
        "lm_head",
    ]
    assert "encoder  embedding" in str(report)
    assert report.notes[0] == "positions are left as they are"
    assert "report.parameter_groups(" in report.notes[1]
    silent = apply_scheme(zoo.bart(), "deepnorm", ends={})
    assert silent.notes == (
        "embeddings, positions and the vocabulary projection are left as they are",
    )


def test_a_multiplier_alone_leaves_every_weight(zoo):
    model = zoo.bert()
    before = rows_of(model, "BERT").clone()
    apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": 30.0})
    assert torch.equal(rows_of(model, "BERT"), before)


def test_the_row_of_zeros_of_a_tied_padding_has_a_gradient_of_the_others_size(zoo):
    """The gradient of a length is infinite at zero, and clipping would let it take all the room."""
    model = zoo.bert()
    apply_scheme(model, "deepnorm", ends=UNIT)
    model(**zoo.inputs(model)).logits.logsumexp(-1).sum().backward()
    sizes = model.bert.embeddings.word_embeddings.weight.grad.norm(dim=1)
    assert 0 < float(sizes[39]) < float(sizes[:39].max())


# Undone, copied, saved, folded --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", CHOICES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_undo_is_exact(zoo, name, ends):
    model = zoo.MODELS[name]()
    kinds, before = [type(module) for module in model.modules()], zoo.outputs(model)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    report = apply_scheme(model, plain_scheme(model), ends=ends)
    assert not torch.equal(rows_of(model, name), state[f"{PAIRED[name]}.weight"])
    report.undo()
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(zoo.outputs(model), before)
    assert model.config.to_dict() == config


@pytest.mark.parametrize("name", ["BART", "Llama"])
def test_copies_and_pickles_have_unit_rows(zoo, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "deepnorm", ends=UNIT)
    assert torch.equal(zoo.outputs(copy.deepcopy(model)), zoo.outputs(model))
    table = pickle.loads(pickle.dumps(model.get_submodule(PAIRED[name])))
    assert torch.equal(table(torch.arange(9)), model.get_input_embeddings()(torch.arange(9)))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ends_come_back(zoo, tmp_path, name):
    ends = {**UNIT, "embedding_std": 0.3, "embedding_lr_multiplier": 30.0}
    model = zoo.MODELS[name]()
    apply_scheme(model, "branchnorm", ends=ends)
    move(model)
    model.save_pretrained(tmp_path)
    restored = from_pretrained(tmp_path)
    assert torch.equal(zoo.outputs(restored), zoo.outputs(model))
    assert restored.deepnet.ends == EndsConfig(**ends)
    assert restored.config.deepnet == model.config.deepnet
    rates = [[group["lr"] for group in parameter_groups(m, lr=0.1)] for m in (model, restored)]
    assert rates[0] == rates[1]
    assert 3.0 in rates[0]


def test_a_record_from_before_there_was_a_choice_is_read(zoo, tmp_path):
    model = zoo.bert()
    apply_scheme(model, "deepnorm")
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["deepnet"]["ends"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    restored = from_pretrained(tmp_path)
    assert restored.deepnet.ends == EndsConfig()
    assert torch.equal(zoo.outputs(restored), zoo.outputs(model))


@pytest.mark.parametrize("name", [*FAMILIES, "OPT, norm after"])
def test_unit_rows_fold_into_what_the_stock_class_reads(zoo, tmp_path, name):
    model = zoo.MODELS[name]()
    kinds = [type(module) for module in model.modules()]
    apply_scheme(model, plain_scheme(model), ends=UNIT)
    move(model)
    assert [type(module) for module in folded(model).modules()] == kinds
    save_folded(model, tmp_path)
    stock = type(zoo.MODELS[name]()).from_pretrained(tmp_path)
    torch.testing.assert_close(zoo.outputs(stock), zoo.outputs(model), rtol=0, atol=1e-12)


def test_unit_rows_fold_together_with_a_skip_that_goes_into_the_embeddings(zoo):
    model = zoo.opt(before=False)
    apply_scheme(model, "deepnorm", ends=UNIT)
    move(model)
    torch.testing.assert_close(zoo.outputs(folded(model)), zoo.outputs(model), rtol=0, atol=1e-12)


# Refused ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fixed(pre_ln.Scheme):
    """Pre-LN that fixes how its embeddings are held and drawn."""

    def ends(self, context: StackContext) -> Ends:
        return replace(super().ends(context), fixes=("rows", "std"))


def test_what_the_scheme_fixes_is_not_chosen_beside_it(zoo):
    model = zoo.llama()
    before = zoo.outputs(model)
    with pytest.raises(ConfigError, match=r"fixes the rows.*leave out ends\.rows"):
        apply_scheme(model, Fixed(), ends=UNIT)
    with pytest.raises(ConfigError, match=r"fixes the std.*leave out ends\.embedding_std"):
        apply_scheme(model, Fixed(), ends={"embedding_std": 0.1})
    assert torch.equal(zoo.outputs(model), before)
    apply_scheme(model, Fixed(), ends={"embedding_lr_multiplier": 3.0})


def test_a_wrong_key_or_value_is_refused(zoo):
    with pytest.raises(ConfigError, match=r"unknown key 'ends\.row'.*rows"):
        apply_scheme(zoo.bert(), "deepnorm", ends={"row": "unit"})
    with pytest.raises(ConfigError, match=r"ends\.embedding_std.*-1"):
        apply_scheme(zoo.bert(), "deepnorm", ends={"embedding_std": -1.0})


def test_torch_s_own_models_have_no_ends(zoo):
    for name in ("nn.Transformer", "nn.TransformerEncoder"):
        with pytest.raises(AdaptError, match=r"has no embeddings, so ends \(rows\)"):
            apply_scheme(zoo.MODELS[name](), "deepnorm", ends=UNIT)
    apply_scheme(zoo.torch_transformer(), "deepnorm", ends=EndsConfig())


@pytest.mark.parametrize("ends", CHOICES, ids=str)
def test_trained_rows_are_kept(zoo, ends):
    model = move(zoo.bert())
    before = zoo.outputs(model)
    with pytest.raises(AdaptError, match=r"would draw rows anew.*initialize=True"):
        apply_scheme(model, "deepnorm", initialize=False, ends=ends)
    apply_scheme(model, "deepnorm", initialize=False, ends={"embedding_lr_multiplier": 9.0})
    torch.testing.assert_close(zoo.outputs(model), before, rtol=0, atol=1e-12)


def test_a_key_of_the_vocabulary_needs_one_with_rows_of_its_own(zoo):
    with pytest.raises(AdaptError, match=r"vocabulary_std has no effect.*embedding_std.*tie_word"):
        apply_scheme(zoo.bert(), "deepnorm", ends={"vocabulary_std": 0.1})
    with pytest.raises(AdaptError, match="BertModel has no vocabulary projection"):
        apply_scheme(zoo.bert().bert, "deepnorm", ends={"vocabulary_lr_multiplier": 2.0})
    apply_scheme(zoo.bert().bert, "deepnorm", ends=UNIT)


def test_an_embedding_with_a_forward_of_its_own_is_refused(zoo):
    class Doubled(nn.Embedding):
        def forward(self, input):
            return 2.0 * super().forward(input)

    model = zoo.gpt2()
    model.transformer.wte.__class__ = Doubled
    with pytest.raises(AdaptError, match=r"transformer\.wte \(Doubled\) has a forward of its own"):
        apply_scheme(model, "deepnorm", ends=UNIT)
    assert type(model.transformer.wte) is Doubled
    wrapped = zoo.gpt2()
    wrapped.lm_head.forward = wrapped.lm_head.forward
    with pytest.raises(AdaptError, match="lm_head"):
        apply_scheme(wrapped, "deepnorm", ends=UNIT)
