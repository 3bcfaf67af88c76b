"""Each probe of the forward pass against the same number from a forward pass written out in plain tensor operations."""

from contextlib import ExitStack
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from by_hand import attention, entropy, layer_norm, linear, rms, stack

from deepnet import (
    AttentionEntropy,
    BranchRatio,
    LogitScale,
    NormInput,
    Similarity,
    Sparsity,
    TokenMeanEnergy,
    apply_scheme,
)
from deepnet.probes.place import OUTPUT, Place

PROBES = {
    "norm_input": NormInput,
    "branch_ratio": BranchRatio,
    "similarity": Similarity,
    "sparsity": Sparsity,
    "attention_entropy": AttentionEntropy,
    "token_mean_energy": TokenMeanEnergy,
    "logit_scale": LogitScale,
}


def read(model, *args, **kwargs):
    """Return the readings of all probes, open together in one call, and what the model returned."""
    with ExitStack() as opened:
        probes = {name: opened.enter_context(kind(model)) for name, kind in PROBES.items()}
        with torch.no_grad():
            output = model(*args, **kwargs)
    return {name: probe.readings() for name, probe in probes.items()}, output


def compare(
    found,
    expected,
    names=(
        "norm_input",
        "branch_ratio",
        "similarity",
        "sparsity",
        "attention_entropy",
        "token_mean_energy",
    ),
):
    for name in names:
        own = {place: value for place, value in found[name].items() if place.layer}
        assert own == pytest.approx(expected[name], rel=1e-9), name


@torch.no_grad()
def test_our_own_post_norm_model(make_model, sentences):
    source, keep, _ = sentences
    model = make_model(architecture="encoder_only", encoder_layers=3, decoder_layers=0)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    found, logits = read(model, source, keep)
    layers = [
        {role: linear(module) for role, module in
         [*((r, vars(s["self"].branch)["_modules"][r]) for r in ("q", "k", "v", "out")),
          ("fc1", s["ffn"].branch.fc1), ("fc2", s["ffn"].branch.fc2)]}
        | {f"{kind}_norm": layer_norm(s[kind].residual.post) for kind in ("self", "ffn")}
        for s in (layer.sublayers for layer in model.encoder.layers)
    ]  # fmt: skip
    x = model.encoder.entry(model.source_embedding(source), 0)
    x, expected = stack(
        x, layers, name="encoder", heads=2, activation=F.relu, post=True,
        alpha=(2 * 3) ** 0.25, keep=keep[:, None, None, :], real=keep,
    )  # fmt: skip
    compare(found, expected)
    by_hand = x @ model.source_embedding.weight[:-1].T
    torch.testing.assert_close(by_hand, logits)
    deviation = (by_hand - by_hand.mean(-1, keepdim=True)).square().mean(-1).sqrt().mean()
    assert found["logit_scale"] == pytest.approx({OUTPUT: float(deviation)}, rel=1e-9)


def bert_layers(model, norm=layer_norm):
    return [
        {
            "q": linear(one.attention.self.query),
            "k": linear(one.attention.self.key),
            "v": linear(one.attention.self.value),
            "out": linear(one.attention.output.dense),
            "fc1": linear(one.intermediate.dense),
            "fc2": linear(one.output.dense),
        }
        for one in model.bert.encoder.layer
    ]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_bert(zoo, implementation):
    model = zoo.bert(hidden_act="relu", attn_implementation=implementation)
    for parameter in model.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    batch = zoo.inputs(model)
    batch["attention_mask"][1, 4:] = 0
    real = batch["attention_mask"].bool()
    found, output = read(model, **batch)
    layers = bert_layers(model)
    for layer, one in zip(layers, model.bert.encoder.layer, strict=True):
        layer["self_norm"] = layer_norm(one.attention.output.LayerNorm)
        layer["ffn_norm"] = layer_norm(one.output.LayerNorm)
    summed = model.bert.embeddings.word_embeddings.weight[batch["input_ids"]]
    summed = summed + model.bert.embeddings.position_embeddings.weight[:6]
    summed = summed + model.bert.embeddings.token_type_embeddings.weight[0]
    x = layer_norm(model.bert.embeddings.LayerNorm)(summed)
    x, expected = stack(
        x, layers, name="encoder", heads=2, activation=F.relu, post=True,
        keep=real[:, None, None, :], real=real,
    )  # fmt: skip
    compare(found, expected)
    assert found["norm_input"][Place("encoder", 0, "embedding")] == pytest.approx(
        rms(summed), rel=1e-9
    )
    assert found["logit_scale"][OUTPUT] == pytest.approx(
        float(output.logits.std(-1, correction=0).mean()), rel=1e-9
    )


@torch.no_grad()
def test_bert_with_deepnorm(zoo):
    model = zoo.bert(hidden_act="relu")
    apply_scheme(model, "deepnorm")
    batch = zoo.inputs(model)
    found, _ = read(model, **batch)
    layers = bert_layers(model)
    for layer, one in zip(layers, model.bert.encoder.layer, strict=True):
        layer["self_norm"] = layer_norm(one.attention.sites["self"].post)
        layer["ffn_norm"] = layer_norm(one.sites["ffn"].post)
    x = model.bert.embeddings(batch["input_ids"])
    _, expected = stack(
        x, layers, name="encoder", heads=2, activation=F.relu, post=True, alpha=4**0.25
    )
    compare(found, expected)


@torch.no_grad()
def test_gpt2_whose_matrices_are_packed_and_turned(zoo):
    model = zoo.gpt2()
    for parameter in model.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    batch = zoo.inputs(model)
    found, _ = read(model, **batch)

    def part(module, index, count):
        width = module.weight.shape[1] // count
        rows = slice(index * width, (index + 1) * width)
        return lambda x: x @ module.weight[:, rows] + module.bias[rows]

    layers = [
        {role: part(block.attn.c_attn, index, 3) for index, role in enumerate("qkv")}
        | {
            "out": part(block.attn.c_proj, 0, 1),
            "fc1": part(block.mlp.c_fc, 0, 1),
            "fc2": part(block.mlp.c_proj, 0, 1),
            "self_norm": layer_norm(block.ln_1),
            "ffn_norm": layer_norm(block.ln_2),
        }
        for block in model.transformer.h
    ]
    x = model.transformer.wte.weight[batch["input_ids"]] + model.transformer.wpe.weight[:6]
    x, expected = stack(
        x, layers, name="decoder", heads=2, post=False,
        activation=lambda y: F.gelu(y, approximate="tanh"),
        keep=torch.ones(6, 6, dtype=torch.bool).tril(),
    )  # fmt: skip
    compare(found, expected)
    assert found["norm_input"][Place("decoder", 0, "final")] == pytest.approx(rms(x), rel=1e-9)


@pytest.mark.parametrize(
    "kind", ["Marian", "BART", "BERT", "RoBERTa", "OPT", "GPT-2", "T5", "Llama"]
)
def test_entropy_and_similarity_from_what_hugging_face_hands_out(zoo, kind):
    """The weights and the layers' outputs that the same model returns itself, with another attention kernel."""
    model = zoo.MODELS[kind]()
    batch = zoo.inputs(model)
    batch["attention_mask"][1, 4:] = 0
    if model.config.is_encoder_decoder:
        batch["decoder_attention_mask"] = torch.ones_like(batch["input_ids"])
    found, _ = read(model, **batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        shown = model(**batch, output_attentions=True, output_hidden_states=True)
    real = batch["attention_mask"].bool()
    if model.config.is_encoder_decoder:
        states = {"encoder": shown.encoder_hidden_states, "decoder": shown.decoder_hidden_states}
        attentions = {
            ("encoder", "self"): (shown.encoder_attentions, real),
            ("decoder", "self"): (shown.decoder_attentions, None),
            ("decoder", "cross"): (shown.cross_attentions, None),
        }
    else:
        (name,) = {place.stack for place in found["similarity"]}
        states = {name: shown.hidden_states}
        attentions = {(name, "self"): (shown.attentions, real)}
    expected = {
        Place(stack, number, site): entropy(weights, mask)
        for (stack, site), (layers, mask) in attentions.items()
        for number, weights in enumerate(layers, start=1)
    }
    # OPT and Llama take the softmax in float32 there
    assert found["attention_entropy"] == pytest.approx(expected, rel=1e-7)
    for where, outputs in states.items():
        ends_in_norm = kind in ("OPT", "GPT-2", "T5", "Llama")  # that norm is in the last output
        for number, pair in enumerate(pairwise(outputs[1 : -1 if ends_in_norm else None]), start=2):
            cosine = F.cosine_similarity(*pair, dim=-1).mean()
            assert found["similarity"][Place(where, number)] == pytest.approx(
                float(cosine), rel=1e-9
            )


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_transformer(zoo, norm_first):
    """Against hooks on its modules, the branch's output taken from the dropout modules behind it."""
    model = zoo.torch_transformer(norm_first=norm_first, batch_first=False)
    source, target = torch.randn(5, 2, 16).double(), torch.randn(4, 2, 16).double()
    ignored = torch.zeros(2, 5, dtype=torch.bool)
    ignored[1, 3:] = True
    causal = model.generate_square_subsequent_mask(4).double()
    layer, seen = model.decoder.layers[1], {}
    for name in ("norm1", "norm2", "norm3", "linear2"):
        getattr(layer, name).register_forward_pre_hook(
            lambda _, args, name=name: seen.__setitem__(name, args[0])
        )
    for name in ("dropout1", "dropout2", "dropout3"):
        getattr(layer, name).register_forward_hook(
            lambda _, args, output, name=name: seen.__setitem__(name, output)
        )
    found, _ = read(
        model, source, target, tgt_mask=causal, src_key_padding_mask=ignored,
        memory_key_padding_mask=ignored, tgt_is_causal=True,
    )  # fmt: skip
    for number, site in enumerate(("self", "cross", "ffn"), start=1):
        place, added, entered = (
            Place("decoder", 2, site),
            seen[f"dropout{number}"],
            seen[f"norm{number}"],
        )
        skip = entered if norm_first else entered - added
        assert found["norm_input"][place] == pytest.approx(rms(entered), rel=1e-9)
        assert found["branch_ratio"][place] == pytest.approx(rms(added) / rms(skip), rel=1e-9)
    share = (seen["linear2"] != 0).double().mean()
    assert found["sparsity"][Place("decoder", 2, "ffn")] == pytest.approx(float(share), rel=1e-12)
    with torch.no_grad():
        x = source.transpose(0, 1)
        x = layer_norm(model.encoder.layers[0].norm1)(x) if norm_first else x
        packed = model.encoder.layers[0].self_attn
        q, k, v = (x @ packed.in_proj_weight.T + packed.in_proj_bias).chunk(3, -1)
        _, weights = attention(q, k, v, 2, ~ignored[:, None, None, :])
    assert found["attention_entropy"][Place("encoder", 1, "self")] == pytest.approx(
        entropy(weights, ~ignored), rel=1e-9
    )
    assert set(found["attention_entropy"]) == {
        *(Place("encoder", n, "self") for n in (1, 2)),
        *(Place("decoder", n, site) for n in (1, 2, 3) for site in ("self", "cross")),
    }
