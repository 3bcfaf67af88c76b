"""Every parameter has a place, and a fused one is told apart by its slices."""

import pytest
import torch
from torch import nn

from deepnet import apply_scheme
from deepnet.anatomy.locate import locate
from deepnet.probes.place import Place, parameter_places, weight_places
from deepnet.schemes.catalogue import list_schemes, load_scheme

NAMES = [
    "nn.Transformer", "nn.Transformer, norm first", "nn.TransformerEncoder", "nn.TransformerDecoder", "Marian",
    "BART", "BERT", "RoBERTa", "OPT", "OPT, norm after", "GPT-2", "T5", "Llama",
]  # fmt: skip


def check_cover(model):
    """Write 1 into what each weight shows; every element of every parameter is then written exactly once."""
    places = weight_places(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for weights in places.values():
            for weight in weights:
                shown = weight.matrix()
                shown += 1
    assert all(bool((parameter == 1).all()) for parameter in model.parameters())
    return places


@pytest.mark.parametrize("name", NAMES)
def test_every_element_has_one_place(zoo, name):
    model = zoo.MODELS[name]()
    places = check_cover(model)
    per_parameter = parameter_places(model)
    assert len(per_parameter) == len(list(model.parameters()))
    assert {p._replace(role="") for p in per_parameter} == {p._replace(role="") for p in places}
    layers = {(s.name, n + 1) for s in locate(model).stacks for n in range(s.num_layers)}
    assert {(p.stack, p.layer) for p in places if p.layer} == layers


@pytest.mark.parametrize("name", list_schemes())
def test_every_element_of_our_own_schemes_has_one_place(make_model, name):
    architecture = load_scheme(name).architectures[0]
    absent = {"decoder_only": "encoder_layers", "encoder_only": "decoder_layers"}
    shape = {absent[architecture]: 0} if architecture in absent else {}
    model = make_model(name, tie_embeddings="none", architecture=architecture, **shape)
    places = check_cover(model)
    roles = {p.role for p in places if p.site == "ffn"}
    assert {"fc1", "fc2"} <= roles <= {"fc1", "fc2", "norm", "scale", "bias"}
    assert Place("", 0, "vocabulary") in places


@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln", "rezero"])
def test_adopted_models(zoo, scheme):
    model = zoo.bart()
    apply_scheme(model, scheme, initialize=True)
    places = check_cover(model)
    role = "scale" if scheme == "rezero" else "norm"
    assert Place("decoder", 2, "cross" if role == "norm" else "self", role) in places


def test_places_as_text():
    assert str(Place("encoder", 3, "ffn", "fc1")) == "encoder.3.ffn.fc1"
    assert str(Place("decoder", 2, "cross")) == "decoder.2.cross"
    assert str(Place("encoder", 3)) == "encoder.3"
    assert str(Place("", 0, "output")) == "output"
    assert Place("encoder", 3, "ffn", "fc1").key == "encoder.ffn.fc1"
    assert sorted([Place("encoder", 10), Place("encoder", 9)])[0].layer == 9


def test_fused_and_shared_parameters(zoo, make_model):
    model = zoo.torch_transformer()
    named = dict(
        zip([n for n, _ in model.named_parameters()], parameter_places(model), strict=True)
    )
    assert named["encoder.layers.1.self_attn.in_proj_weight"] == Place("encoder", 2, "self", "qkv")
    assert named["encoder.layers.1.self_attn.in_proj_bias"] == Place("encoder", 2, "self", "bias")
    assert named["decoder.layers.0.norm2.weight"] == Place("decoder", 1, "cross", "norm")
    assert named["decoder.norm.bias"] == Place("decoder", 0, "final", "norm")
    ours = make_model(tie_embeddings="decoder", positions="learned")
    named = dict(zip([n for n, _ in ours.named_parameters()], parameter_places(ours), strict=True))
    assert named["source_embedding.weight"] == Place("encoder", 0, "embedding")
    assert named["target_embedding.weight"] == Place("decoder", 0, "embedding")
    assert named["encoder.entry.positions.weight"] == Place("encoder", 0, "embedding", "position")
    assert "" not in {str(place) for place in named.values()}
    tied = make_model(tie_embeddings="all")
    assert Place("", 0, "embedding") in weight_places(tied)


def test_a_model_that_is_not_known_has_its_names():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    assert [str(place) for place in parameter_places(model)] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]
