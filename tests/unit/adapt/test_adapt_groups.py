"""Parameter groups of adopted models: everything once, each with its own learning rate and weight decay."""

import pytest
import torch
from torch import nn

import deepnet
from deepnet import apply_scheme, parameter_groups
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError

FAMILIES = ["Marian", "BART", "BERT", "RoBERTa", "OPT", "GPT-2", "T5", "Llama"]


@pytest.mark.parametrize("name", FAMILIES)
def test_groups_hold_every_trainable_parameter_once_with_its_own_settings(zoo, name):
    ends = {"embedding_lr_multiplier": 30.0, "embedding_weight_decay_multiplier": 0.5}
    model = zoo.MODELS[name]()
    report = apply_scheme(model, "rezero", ends=ends)
    groups = report.parameter_groups(lr=0.01, weight_decay=0.1)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    ends_of = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    for parameter in model.parameters():
        if parameter.requires_grad:
            expected = 0.01, 0.1 if parameter.dim() > 1 else 0.0
            if id(parameter) in ends_of:
                expected = 0.3, 0.05
            assert found[id(parameter)] == pytest.approx(expected)


def test_the_vocabulary_of_its_own_has_its_own_multiplier_and_a_model_around_it_is_grouped(zoo):
    model = zoo.llama()
    ends = {"embedding_lr_multiplier": 30.0, "vocabulary_lr_multiplier": 3.0}
    apply_scheme(model, "deepnorm", ends=ends)
    whole = nn.Sequential(model, nn.Linear(40, 3).double())
    groups = parameter_groups(whole, lr=1.0)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(model.model.embed_tokens.weight)] == 30.0
    assert rates[id(model.lm_head.weight)] == 3.0
    assert rates[id(whole[1].weight)] == rates[id(whole[1].bias)] == 1.0
    assert len(rates) == len(list(whole.parameters()))


def test_groups_of_a_model_of_torch_and_of_none(zoo):
    model = zoo.torch_transformer()
    report = apply_scheme(model, "deepnorm")
    decays = {g["weight_decay"] for g in report.parameter_groups(lr=1.0, weight_decay=0.1)}
    assert decays == {0.0, 0.1}
    report.undo()
    with pytest.raises(AdaptError, match="carries no scheme"):
        parameter_groups(model, lr=1.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_update_moves_embeddings_by_the_multiplier(zoo, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": 30.0})
    groups = parameter_groups(model, lr=1e-3, weight_decay=0.0)
    before = {id(p): p.detach().clone() for p in model.parameters()}
    model(**zoo.inputs(model)).logits.logsumexp(-1).sum().backward()
    torch.optim.AdamW(groups, eps=1e-16).step()
    for parameter, rate in (
        (model.get_input_embeddings().weight, 0.03),
        (model.get_output_embeddings().weight, 0.03),
        (next(locate(model).sites()).part.weights[-1].parameter, 0.001),
    ):
        moved = (parameter - before[id(parameter)])[parameter.grad.abs() > 1e-10].abs()
        assert moved.numel() > 50
        torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-4, atol=0)


def test_the_name_is_public():
    assert "parameter_groups" in deepnet.__all__
