"""Parameter groups of adopted models: everything once, each with its own learning rate and weight decay."""

import pytest
import torch
from torch import nn

import deepnet
from deepnet import (
    EndsConfig,
    Transformer,
    TransformerConfig,
    apply_scheme,
    load_scheme,
    parameter_groups,
    train_model,
)
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError, ConfigError

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


def test_a_model_of_ours_is_grouped_as_a_recipe_trains_it():
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, d_model=8, num_heads=2, vocab_size=20
    )
    ends = EndsConfig(embedding_lr_multiplier=30.0, embedding_weight_decay_multiplier=0.5)
    model = Transformer(config, load_scheme("deepnorm"), ends=ends)
    groups = parameter_groups(model, lr=0.01, weight_decay=0.1)
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert found[id(model.target_embedding.weight)] == pytest.approx((0.3, 0.05))
    others = [p for p in model.parameters() if p is not model.target_embedding.weight]
    assert {found[id(p)] for p in others} == {(0.01, 0.1), (0.01, 0.0)}
    assert len(found) == len(others) + 1


def test_a_shared_row_cannot_learn_at_two_rates(zoo):
    one, other = zoo.llama(), zoo.llama()
    other.model.embed_tokens.weight = one.model.embed_tokens.weight
    for model, rate in ((one, 30.0), (other, 3.0)):
        apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": rate})
    with pytest.raises(AdaptError, match="share rows"):
        parameter_groups(nn.ModuleList([one, other]), lr=1.0)


def test_train_model_carries_out_the_multipliers_of_an_adopted_model(zoo, tmp_path):
    model = zoo.llama().float()
    apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": 30.0})
    rows, matrix = model.model.embed_tokens.weight, model.model.layers[0].mlp.up_proj.weight
    before = rows.detach().clone(), matrix.detach().clone()
    train_model(
        model, batches=[torch.arange(2, 12)[None]], out=tmp_path / "run", device="cpu",
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        settings={
            "optimizer": {"lr": 1e-3}, "training": {"max_steps": 1},
            "schedule": {"name": "constant", "warmup_steps": 0},
        },
    )  # fmt: skip
    moved = [
        (now - then).abs().max().item() for now, then in zip((rows, matrix), before, strict=True)
    ]
    assert moved == pytest.approx([3e-2, 1e-3], rel=0.01)


@pytest.mark.parametrize("name", sorted({*FAMILIES} - {"GPT-2"}))
def test_the_matrices_of_branches_can_be_taken_apart_for_muon(zoo, name):
    model = zoo.MODELS[name]()
    report = apply_scheme(model, "rezero", ends={"embedding_lr_multiplier": 30.0})
    shares = {
        share: {
            id(p) for group in report.parameter_groups(lr=1.0, only=share) for p in group["params"]
        }
        for share in ("all", "matrices", "others")
    }
    expected = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    expected -= {id(model.get_output_embeddings().weight)} | {
        id(module.weight)
        for path, module in model.named_modules()
        if path.endswith("transform.dense")
    }  # BERT's and RoBERTa's heads have a matrix that is in no branch
    heads = {id(p) for n, p in model.named_parameters() if n.startswith("lm_head.dense")}
    assert shares["matrices"] == expected - heads
    assert shares["others"] == shares["all"] - shares["matrices"]
    assert not shares["others"] & shares["matrices"]


@pytest.mark.parametrize(
    ("make", "where"),
    [("gpt2", r"q is one of several in .*c_attn\.weight"), ("torch_transformer", "in_proj_weight")],
)
def test_packed_queries_keys_and_values_are_refused_for_muon(zoo, make, where):
    model = getattr(zoo, make)()
    report = apply_scheme(model, "deepnorm")
    with pytest.raises(AdaptError, match=where) as error:
        report.parameter_groups(lr=1.0, only="matrices")
    assert "take adamw for this model" in str(error.value)
    assert "\n" not in str(error.value)


def muon_settings(**training):
    return {
        "optimizer": {"name": "muon", "lr": 1e-3, "muon": {"weight_decay": 0.0}},
        "training": training,
        "schedule": {"name": "constant", "warmup_steps": 0},
    }


def test_train_model_gives_muon_the_matrices_of_an_adopted_model(zoo, tmp_path):
    model, theirs = zoo.llama().float(), zoo.llama().float()
    for one in (model, theirs):
        apply_scheme(one, "branchnorm", ends={"embedding_lr_multiplier": 30.0})
    theirs.load_state_dict(model.state_dict())
    ids = torch.arange(2, 12)[None]
    train_model(
        model, batches=[ids], out=tmp_path / "run", device="cpu", settings=muon_settings(max_steps=3),
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
    )  # fmt: skip
    pair = [
        torch.optim.Muon(
            parameter_groups(theirs, lr=1e-3, only="matrices"),
            weight_decay=0.0, adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(parameter_groups(theirs, lr=1e-3, only="others"), betas=(0.9, 0.98)),
    ]  # fmt: skip
    for _ in range(3):
        theirs.zero_grad()
        theirs(input_ids=ids, labels=ids).loss.backward()
        for optimizer in pair:
            optimizer.step()
    assert model.deepnet.step == theirs.deepnet.step == 3
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_train_model_refuses_muon_where_roles_are_not_known(tmp_path):
    with pytest.raises(ConfigError, match="is not known; give the model a scheme by apply_scheme"):
        train_model(
            nn.Linear(3, 2), batches=[torch.ones(1, 3)], out=tmp_path / "run", device="cpu",
            loss=lambda model, x: model(x).sum(), settings=muon_settings(max_steps=1),
        )  # fmt: skip


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
