"""Under recompute, autocast, accumulation and errors: a call counts once, and the model is left as it was."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode
from torch.utils.checkpoint import checkpoint

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
from deepnet.errors import AdaptError
from deepnet.probes.place import Place
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.training.engine.recompute import recomputed
from deepnet.transformer.models import Transformer, TransformerConfig

PROBES = (
    AttentionEntropy, BranchRatio, LogitScale, NormInput, Similarity, Sparsity, TokenMeanEnergy,
)  # fmt: skip


def read(model, run) -> list[dict]:
    """Return the readings of all probes, open together while `run` runs."""
    with ExitStack() as opened:
        probes = [opened.enter_context(kind(model)) for kind in PROBES]
        run()
    return [probe.readings() for probe in probes]


def close(found, expected, rel=1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=rel)


def checkpoint_layers(layers, *, reentrant: bool) -> None:
    """Let each layer compute its activations again in the backward pass, by torch's own function."""
    for layer in layers:
        inner = layer.forward

        def forward(x, *args, inner=inner, **kwargs):
            return checkpoint(lambda x: inner(x, *args, **kwargs), x, use_reentrant=reentrant)

        layer.forward = forward


@pytest.mark.parametrize("reentrant", [False, True])
def test_torch_checkpoint_counts_once(zoo, reentrant):
    """Of two calls only the first is differentiated: were it counted again, it would weigh more."""
    model = zoo.llama()
    ids = zoo.inputs(model)["input_ids"]

    def call(ids):
        embedded = model.get_input_embeddings()(ids)
        return model(inputs_embeds=embedded, use_cache=False).logits

    expected = read(model, lambda: (call(ids), call(ids[:1, :2])))
    checkpoint_layers(model.model.layers, reentrant=reentrant)
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    found = read(model, lambda: (call(ids).square().mean().backward(), call(ids[:1, :2])))
    close(found, expected)
    assert len(calls) == 3


def test_our_recompute_counts_once(make_model, sentences):
    model = make_model(decoder_layers=3)
    other = [None if part is None else part[:1, :2] for part in sentences]
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    expected = read(model, lambda: (model(*sentences), model(*other)))
    with recomputed(blocks):
        found = read(model, lambda: (model(*sentences).square().mean().backward(), model(*other)))
    close(found, expected)


def test_gradients_do_not_notice_probes(make_model, sentences):
    model = make_model(decoder_layers=3, dropout=0.1)
    gradients = []
    for watch in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        step = lambda: model(*sentences).square().mean().backward()  # noqa: E731
        read(model, step) if watch else step()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", ["nn.Transformer", "BERT", "T5"])
def test_bf16_autocast(zoo, name):
    model = zoo.MODELS[name]().float()
    batch = zoo.inputs(model)
    batch = (
        {"args": tuple(x.float() for x in batch), "kwargs": {}}
        if isinstance(batch, tuple)
        else {"args": (), "kwargs": batch}
    )

    def run():
        first = model(*batch["args"], **batch["kwargs"])
        out = first if isinstance(first, torch.Tensor) else first.logits
        out.float().square().mean().backward()

    def both():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run()

    model.train()
    expected, plain = read(model, run), [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    found = read(model, both)
    *rest, _ = PROBES  # what varies between tokens here is less than bf16 rounds away
    close(found[: len(rest)], expected[: len(rest)], rel=0.05)
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - gradient).norm()) <= 0.2 * float(gradient.norm()) + 1e-4


def test_entropy_under_autocast_is_not_rounded(make_model):
    """From the q and k that there are, which are bf16, but in float32."""
    model = make_model("pre_ln", architecture="decoder_only", encoder_layers=0).float()
    ids, seen = torch.randint(2, 29, (2, 20)), {}
    attention = model.decoder.layers[0].sublayers["self"].branch
    for name in ("q", "k"):
        getattr(attention, name).register_forward_hook(
            lambda _, args, output, name=name: seen.__setitem__(name, output)
        )
    for dropout in (0.0, 0.1):  # with dropout torch's attention is used, without it ours in bf16
        attention.dropout = dropout
        with (
            torch.no_grad(),
            AttentionEntropy(model) as probe,
            torch.autocast("cpu", torch.bfloat16),
        ):
            model(ids)
        q, k = (seen[name].double().unflatten(2, (2, 8)).transpose(1, 2) for name in "qk")
        assert seen["q"].dtype == torch.bfloat16
        hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(hidden, -torch.inf).softmax(3)
        expected = float(torch.special.entr(weights).sum(3).mean())
        reading = probe.readings()[Place("decoder", 1, "self")]
        assert reading == pytest.approx(expected, rel=1e-6 if dropout else 3e-3)


def test_several_calls_are_pooled(make_model):
    model = make_model("pre_ln", architecture="decoder_only", encoder_layers=0)
    short, long = torch.randint(2, 29, (1, 3)), torch.randint(2, 29, (2, 7))
    alone = [read(model, lambda ids=ids: model(ids)) for ids in (short, long)]
    together = read(model, lambda: (model(short), model(long)))
    place = Place("decoder", 2, "ffn")
    entropy, ratio, logits, norm, similarity, sparsity, _ = zip(*alone, strict=True)
    squares = (3 * norm[0][place] ** 2 + 14 * norm[1][place] ** 2) / 17
    assert together[3][place] == pytest.approx(squares**0.5, rel=1e-12)
    for index, readings in ((0, entropy), (2, logits), (4, similarity), (5, sparsity)):
        for where, value in together[index].items():
            mean = (readings[0][where] + readings[1][where]) / 2
            assert value == pytest.approx(mean, rel=1e-12)
    low, high = sorted(one[place] for one in ratio)
    assert low < together[1][place] < high


def test_entering_again_starts_anew(make_model, sentences):
    model = make_model()
    probe = NormInput(model)
    with probe:
        model(*sentences)
    first = probe.readings()
    with probe:
        assert probe.readings() == {}
        model(*sentences)
    assert probe.readings() == first


def traces(model):
    """Return all that a probe could leave behind."""
    modules = [
        (
            module.training,
            sorted(vars(module)),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
        )
        for module in model.modules()
    ]
    return modules, torch.backends.mha.get_fastpath_enabled(), _get_current_function_mode()


@pytest.mark.parametrize("name", ["nn.Transformer", "BERT", "T5", "Llama"])
def test_models_are_left_as_they_were(zoo, name):
    model = zoo.MODELS[name]()
    before = traces(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    read(model, lambda: zoo.outputs(model))
    assert traces(model) == before

    def fail():
        zoo.outputs(model)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(model, fail)
    with pytest.raises((RuntimeError, AttributeError, TypeError, ValueError)):
        read(model, lambda: model("not a tensor", "nor this"))
    assert traces(model) == before
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_our_own_models_are_left_as_they_were(make_model, sentences):
    model = make_model("hyper_connections")
    before = traces(model)
    read(model, lambda: model(*sentences))
    with pytest.raises(IndexError):
        read(model, lambda: model(sentences[0] + 100, None, sentences[2]))
    assert traces(model) == before


def test_torchs_fused_path_is_seen_too(zoo):
    """In evaluation mode without gradients torch.nn runs a layer as one kernel, with padding as a nested tensor."""
    encoder = zoo.torch_encoder()
    x = torch.randn(2, 5, 16).double()
    ignored = torch.zeros(2, 5, dtype=torch.bool)
    ignored[1, 3:] = True
    for kind in PROBES:
        with torch.no_grad(), kind(encoder) as fused:
            encoder(x, src_key_padding_mask=ignored)
        with kind(encoder) as plain:
            encoder(x, src_key_padding_mask=ignored)
        assert fused.readings() == pytest.approx(plain.readings(), rel=1e-9)
        assert (kind is LogitScale) == (not fused.readings())


@pytest.mark.parametrize("name", list_schemes())
def test_every_scheme_of_ours_has_readings_at_every_site(make_model, sentences, name):
    architecture = load_scheme(name).architectures[0]
    both = architecture == "encoder_decoder"
    stacks = ("encoder", "decoder") if both else (architecture.removesuffix("_only"),)
    shape = {f"{stack}_layers": 2 * (stack in stacks) for stack in ("encoder", "decoder")}
    model = make_model(name, tie_embeddings="none", architecture=architecture, **shape)
    entropy, ratio, logits, norm, similarity, sparsity, energy = read(
        model, lambda: model(*sentences) if both else model(sentences[0])
    )
    sites = {(stack, kind) for stack in stacks for kind in ("self", "ffn")}
    sites |= {("decoder", "cross")} if both else set()
    assert {(p.stack, p.site) for p in ratio} == sites
    assert {(p.stack, p.site) for p in entropy} == {s for s in sites if s[1] != "ffn"}
    assert {(p.stack, p.site) for p in sparsity} == {s for s in sites if s[1] == "ffn"}
    assert {p.layer for p in similarity} == {2}
    assert {(p.stack, p.site) for p in energy if p.site} == sites
    assert {p.layer for p in energy if not p.site} == {1, 2}
    assert not [value for value in energy.values() if value < 0]
    normless = name in ("r_fixup", "rezero", "t_fixup")
    assert (not norm) == normless
    for readings in (entropy, ratio, logits, norm, similarity, sparsity):
        assert all(0.0 <= value < 100.0 for value in readings.values())


def test_padding_does_not_count_in_the_entropy(make_model):
    """Two sentences alone, and together with padding: the queries that are tokens have the same weights."""
    model = make_model(positions="rotary", decoder_layers=3)
    sources = [torch.randint(2, 29, (1, n)) for n in (3, 6)]
    targets = [torch.tensor([[29, *range(5, 5 + n)]]) for n in (4, 1)]
    alone = [
        read(model, lambda s=s, t=t: model(s, None, t))[0]
        for s, t in zip(sources, targets, strict=True)
    ]
    source = torch.full((2, 6), 29)
    source[0, :3], source[1] = sources[0], sources[1]
    target = torch.full((2, 5), 29)
    target[0], target[1, :2] = targets[0], targets[1]
    together = read(model, lambda: model(source, source != 29, target))[0]
    for place, value in together.items():
        a, b = (3, 6) if place.stack == "encoder" else (5, 2)
        expected = (a * alone[0][place] + b * alone[1][place]) / (a + b)
        assert value == pytest.approx(expected, rel=1e-9), place


def test_streams(make_model, sentences):
    """Hyper-connections show the mean of their streams; the last addition of B2T's layers has the layer's input."""
    model, place = make_model("hyper_connections"), Place("encoder", 2, "ffn")
    seen = []
    sublayer = model.encoder.layers[1].sublayers["ffn"]
    sublayer.register_forward_pre_hook(lambda _, args: seen.append(args[0].mean(0)))
    sublayer.register_forward_hook(lambda *call: seen.append(call[2].mean(0)))
    with torch.no_grad():
        ratio = read(model, lambda: model(*sentences))[1]
    before, after = seen
    assert ratio[place] == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-9)
    model, seen = make_model("b2t"), []
    sublayer = model.encoder.layers[1].sublayers["ffn"]
    sublayer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    sublayer.branch.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        ratio = read(model, lambda: model(*sentences))[1]
    (x, entered), y = seen
    assert ratio[place] == pytest.approx(float(y.norm() / (x + entered).norm()), rel=1e-9)


def test_dropout_and_inner_norms_do_not_change_the_sparsity_of_ours(make_model, sentences):
    places = {}
    for name in ("sub_ln", "r_fixup"):
        torch.manual_seed(1)
        model = make_model(name, activation_dropout=0.5, tie_embeddings="none").eval()
        calm = read(model, lambda model=model: model(*sentences))[5]
        model.train()
        places[name] = (calm, read(model, lambda model=model: model(*sentences))[5])
    for calm, dropped in places.values():
        first = Place("encoder", 1, "ffn")
        assert 0.2 < calm[first] < 0.8
        assert dropped[first] == calm[first]


def test_adopted_scales_are_those_of_the_addition(zoo):
    model = zoo.bert()
    apply_scheme(model, "rezero", initialize=True)
    ratio = read(model, lambda: zoo.outputs(model))[1]
    assert set(ratio.values()) == {0.0}


def test_a_model_that_is_not_known_is_refused():
    with pytest.raises(AdaptError, match="none of the models"):
        NormInput(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("scheme", ["deepnorm", "post_ln", "pre_ln"])
def test_a_model_in_training_has_the_terms_of_its_additions_read(scheme):
    """Dropout so rare that nothing is dropped: training must read what evaluation does."""
    config = TransformerConfig(
        architecture="encoder_only", encoder_layers=3, decoder_layers=0, d_model=16, ffn_dim=32,
        num_heads=2, vocab_size=30, dropout=1e-9,
    )  # fmt: skip
    torch.manual_seed(0)
    model, ids = Transformer(config, load_scheme(scheme)), torch.randint(1, 29, (2, 7))
    found = []
    for mode in (True, False):
        with BranchRatio(model.train(mode)) as probe:
            model(ids)
        found.append(probe.readings())
    close(found[:1], found[1:], rel=1e-5)
