"""apply_scheme: what it draws, reports, refuses, keeps and undoes."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from deepnet import apply_scheme
from deepnet.adapt.attach import attach
from deepnet.adapt.fit import Setting, plan_stacks
from deepnet.adapt.journal import Journal
from deepnet.adapt.state import SchemeState
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError, ConfigError
from deepnet.schemes.catalogue import load_scheme

MODELS = ["nn.Transformer", "Marian", "BART", "BERT", "RoBERTa", "OPT", "GPT-2", "T5", "Llama"]


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_drawn_by_role(zoo, name):
    """Glorot's std sqrt(2 / (in + out)) times beta on v, out, fc1, fc2 and 1 on q, k; pooled, 1,000s of numbers."""
    model = zoo.MODELS[name]()
    report = apply_scheme(model, "deepnorm")
    encoder, decoder = ((2**4 * 3) ** (-1 / 16) * 0.87, 36**-0.25)
    for stack in locate(model).stacks:
        depth = stack.num_layers
        beta = encoder if stack.name == "encoder" else decoder
        if report.architecture != "encoder_decoder":
            beta = (8 * depth) ** -0.25
        for found in stack.sites:
            for weight in found.part.weights:
                fan_out, fan_in = weight.matrix().shape
                if weight.role in ("k", "v"):
                    fan_out = fan_in  # keys of fewer heads get the std of full ones
                gain = 1.0 if weight.role in ("q", "k", "gate") else beta
                std = gain * math.sqrt(2 / (fan_in + fan_out)) * weight.factor
                count = weight.matrix().numel()
                assert float(weight.matrix().std()) == pytest.approx(
                    std, rel=5 / math.sqrt(2 * count)
                )
                assert weight.bias() is None or not weight.bias().any()


def test_t5_q_makes_up_for_unscaled_attention(zoo):
    model = zoo.t5()
    apply_scheme(model, "post_ln")
    pooled = [f.part.weights[0].matrix() for f in locate(model).sites() if f.site.kind != "ffn"]
    assert float(torch.stack(pooled).std()) == pytest.approx((16 * 8) ** -0.5, rel=0.06)


def test_heads_of_a_size_of_their_own_are_not_taken_for_few():
    config = T5Config(vocab_size=40, d_model=64, d_kv=8, d_ff=48, num_layers=3, num_heads=4)
    model = T5ForConditionalGeneration(config)
    apply_scheme(model, "post_ln")
    weights = [w for found in locate(model).sites() for w in found.part.weights]
    for role in "kv":
        drawn = torch.stack([w.matrix() for w in weights if w.role == role])
        error = 4 / math.sqrt(2 * drawn.numel())
        assert float(drawn.std()) == pytest.approx(math.sqrt(2 / (32 + 64)), rel=error)


def test_the_report_names_every_weight_and_module(zoo):
    model = zoo.torch_transformer()
    before = {name: float(p.detach().std(correction=0)) for name, p in model.named_parameters()}
    report = apply_scheme(model, "deepnorm")
    assert len(report.weights) == 2 * 6 + 3 * 10
    assert len(report.modules) == 2 * 2 + 3 * 3 + 2
    line = next(w for w in report.weights if w.where == "encoder.layers.0.linear1.weight")
    assert line.before == pytest.approx(before[line.where], rel=1e-12)
    after = model.encoder.layers[0].linear1.weight.detach()
    assert line.after == pytest.approx(float(after.std(correction=0)), rel=1e-12)
    packed = [w for w in report.weights if w.where.startswith("encoder.layers.0.self_attn.in_proj")]
    assert [w.where.partition("[")[2] for w in packed] == ["0:16]", "16:32]", "32:48]"]
    assert sum("final norm norm taken out" in change.what for change in report.modules) == 2
    assert "encoder  fc1" in str(report)
    assert "decoder.layers.2.linear2.weight" in report.table()


def test_embeddings_are_left_alone(zoo):
    model = zoo.bert()
    before = copy.deepcopy(model.bert.embeddings.state_dict())
    apply_scheme(model, "deepnorm")
    for name, tensor in model.bert.embeddings.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_scheme_that_cannot_live_there_is_refused_with_what_can(zoo):
    model = zoo.bert()
    before = zoo.outputs(model)
    with pytest.raises(AdaptError, match=r"more than one tensor.*What can: .*deepnorm.*pre_ln"):
        apply_scheme(model, "resi_dual")
    with pytest.raises(AdaptError, match="asks its branches for a norm"):
        apply_scheme(model, "sub_ln")
    with pytest.raises(AdaptError, match="defined for decoder_only, not encoder_only"):
        apply_scheme(model, "hybrid_norm")
    assert torch.equal(zoo.outputs(model), before)
    assert not any(isinstance(module, SchemeState) for module in model.modules())


def test_a_layer_with_a_forward_of_its_own_is_refused(zoo):
    """Ours would take its place in a subclass, and never be called behind a wrapper set on the instance."""

    class Layer(nn.TransformerEncoderLayer):
        def _sa_block(self, x, *args, **kwargs):
            return 0.0 * super()._sa_block(x, *args, **kwargs)

    encoder = nn.TransformerEncoder(Layer(16, 2, 32, batch_first=True), 2)
    with pytest.raises(AdaptError, match=r"layers\.0 \(Layer\) has a forward of its own"):
        apply_scheme(encoder, "deepnorm")
    assert all(type(layer) is Layer for layer in encoder.layers)
    wrapped = zoo.gpt2()
    block = wrapped.transformer.h[1]
    block.forward = block.forward
    with pytest.raises(AdaptError, match=r"transformer\.h\.1 .* wrapper such as a device_map"):
        apply_scheme(wrapped, "deepnorm")


def test_a_scheme_object_has_its_options_already(zoo):
    scheme = load_scheme("branchnorm", {"T": 7})
    with pytest.raises(ConfigError, match="go with a scheme's name"):
        apply_scheme(zoo.bert(), scheme, options={"T": 8})
    assert apply_scheme(zoo.bert(), scheme).scheme["T"] == 7


def test_merged_attention_is_refused(zoo):
    with pytest.raises(AdaptError, match="its branches differ from the decoder's"):
        apply_scheme(zoo.marian(), "ds_init", options={"merged": True})


def test_a_second_scheme_needs_the_first_undone(zoo):
    model = zoo.bert()
    report = apply_scheme(model, "deepnorm")
    with pytest.raises(AdaptError, match="carries a scheme already"):
        apply_scheme(model, "post_ln")
    report.undo()
    apply_scheme(model, "post_ln")


def test_measuring_schemes_want_a_batch_and_change_nothing_without(zoo):
    model = zoo.bert()
    before, classes = zoo.outputs(model), [type(m) for m in model.modules()]
    with pytest.raises(ConfigError, match="batch"):
        apply_scheme(model, "admin")
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(zoo.outputs(model), before)
    apply_scheme(model, "admin", batches=[zoo.inputs(model)])
    scales = [found.residual.skip.factor.detach().unique() for found in locate(model).sites()]
    assert float(scales[0]) == 1.0
    assert all(float(b) > float(a) for a, b in itertools.pairwise(scales))


def test_a_stack_of_a_larger_model_takes_the_whole_depth(zoo):
    decoder = zoo.torch_decoder()
    with pytest.raises(AdaptError, match=r"layers=\(encoder layers, 3\)"):
        apply_scheme(decoder, "deepnorm")
    apply_scheme(decoder, "deepnorm", layers=(6, 3))
    assert decoder.layers[0].sites["self"].skip == pytest.approx(9**0.25)
    encoder = zoo.torch_encoder()
    report = apply_scheme(encoder, "deepnorm", layers=(0, 2))
    assert {weight.stack for weight in report.weights} == {"decoder"}
    assert report.architecture == "decoder_only"
    report.undo()
    apply_scheme(encoder, "deepnorm", layers=(2, 6))
    assert encoder.layers[0].sites["self"].skip == pytest.approx(0.81 * (2**4 * 6) ** (1 / 16))
    for wrong in ((5, 5), (6, 2)):
        with pytest.raises(
            AdaptError, match=r"layers is \([56], [52]\), but the model has \(2, 0\)"
        ):
            apply_scheme(zoo.torch_encoder(), "deepnorm", layers=wrong)
    with pytest.raises(AdaptError, match=r"layers is \(3, 3\)"):
        apply_scheme(zoo.torch_transformer(), "deepnorm", layers=(3, 3))


# Trained weights ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def train(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("name", ["nn.Transformer", "BERT", "GPT-2"])
def test_trained_weights_are_not_drawn_anew_unless_told_to(zoo, name):
    model = train(zoo.MODELS[name]())
    before = zoo.outputs(model)
    with pytest.raises(AdaptError, match=r"trained.*initialize=True.*initialize=False"):
        apply_scheme(model, "deepnorm")
    assert torch.equal(zoo.outputs(model), before)
    report = apply_scheme(model, "deepnorm", initialize=True)
    fc1 = [w for w in report.weights if w.role == "fc1"]
    assert all(w.after == pytest.approx(w.expected, rel=0.15) for w in fc1)


CONVERSIONS = [
    ("nn.Transformer", "deepnorm"),
    ("nn.Transformer", "branchnorm"),
    ("nn.Transformer, norm first", "layernorm_scaling"),
    ("Marian", "deepnorm"),
    ("BART", "branchnorm"),
    ("BERT", "deepnorm"),
    ("BERT", "branchnorm"),
    ("OPT, norm after", "deepnorm"),
    ("GPT-2", "layernorm_scaling"),
    ("T5", "pre_ln"),
    ("Llama", "layernorm_scaling"),
    ("Llama", "layerscale"),
    ("T5", "prores"),
    ("GPT-2", "gpas"),
]


@pytest.mark.parametrize(("name", "scheme"), CONVERSIONS)
def test_conversions_keep_the_function(zoo, name, scheme):
    model = train(zoo.MODELS[name]())
    before = zoo.outputs(model)
    apply_scheme(model, scheme, initialize=False)
    torch.testing.assert_close(zoo.outputs(model), before, rtol=0, atol=1e-12)


def test_deepnorm_takes_trained_branches_times_alpha(zoo):
    model = train(zoo.bert())
    layer = model.bert.encoder.layer[1]
    before = {n: p.detach().clone() for n, p in layer.named_parameters()}
    apply_scheme(model, "deepnorm", initialize=False)
    after, alpha = dict(layer.named_parameters()), 4**0.25
    for part in ("weight", "bias"):
        for last in ("attention.output.dense", "output.dense"):
            name = f"{last}.{part}"
            torch.testing.assert_close(after[name].detach(), alpha * before[name])
        assert torch.equal(
            after[f"intermediate.dense.{part}"], before[f"intermediate.dense.{part}"]
        )
    assert layer.sites["ffn"].post.eps == pytest.approx(1e-12 * alpha**2)


def test_branchnorm_starts_trained_weights_at_its_last_step(zoo):
    model = train(zoo.bert())
    apply_scheme(model, "branchnorm", options={"T": 123}, initialize=False)
    assert model.deepnet.step == 123


def test_where_no_exact_form_exists_trained_weights_are_refused(zoo):
    model = train(zoo.bert())
    before = zoo.outputs(model)
    for scheme in ("pre_ln", "keel", "rezero"):
        with pytest.raises(AdaptError, match="no form that computes exactly"):
            apply_scheme(model, scheme, initialize=False)
    assert torch.equal(zoo.outputs(model), before)


# What an adopted model survives -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, "nn.Transformer, norm first", "OPT, norm after"])
@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln", "rezero"])
def test_undo_is_exact(zoo, name, scheme):
    model = zoo.MODELS[name]()
    modules, before = list(model.named_modules()), zoo.outputs(model)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    config = model.config.to_dict() if name in MODELS[1:] else None
    report = apply_scheme(model, scheme)
    assert not torch.equal(zoo.outputs(model), before)
    report.undo()
    report.undo()  # a second time does nothing
    assert [(n, type(m)) for n, m in model.named_modules()] == [(n, type(m)) for n, m in modules]
    assert all(a is b for (_, a), (_, b) in zip(model.named_modules(), modules, strict=True))
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(zoo.outputs(model), before)
    assert config is None or model.config.to_dict() == config


@pytest.mark.parametrize("name", ["nn.Transformer", "Marian", "T5"])
def test_copies_and_state_dicts_carry_the_scheme_and_its_step(zoo, name):
    model = zoo.MODELS[name]()
    apply_scheme(model, "branchnorm")
    model.deepnet.advance(1500)
    twin = copy.deepcopy(model)
    assert torch.equal(zoo.outputs(twin), zoo.outputs(model))
    twin.deepnet.advance(0)
    assert model.deepnet.step == 1500
    assert not torch.equal(zoo.outputs(twin), zoo.outputs(model))
    other = zoo.MODELS[name]()
    apply_scheme(other, "branchnorm")
    other.load_state_dict(model.state_dict())
    assert other.deepnet.step == 1500
    assert torch.equal(zoo.outputs(other), zoo.outputs(model))


def test_stock_models_refuse_an_adopted_state_dict_even_when_not_strict(zoo):
    model = zoo.torch_transformer()
    apply_scheme(model, "deepnorm")
    with pytest.raises(RuntimeError, match=r"size mismatch for encoder\.layers\.0\.norm1\.weight"):
        zoo.torch_transformer().load_state_dict(model.state_dict(), strict=False)


@pytest.mark.parametrize("name", ["BERT", "Marian", "T5", "Llama"])
def test_gradient_checkpointing_changes_no_gradient(zoo, name):
    model = zoo.MODELS[name]().train()
    apply_scheme(model, "branchnorm")
    model.deepnet.advance(400)
    batch = zoo.inputs(model)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(**batch).logits.square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    model.activation_checkpointing_enable()
    for a, b in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_recorded_states_and_attentions_are_still_there(zoo):
    model = zoo.bert(attn_implementation="eager")
    apply_scheme(model, "deepnorm")
    out = model(**zoo.inputs(model), output_hidden_states=True, output_attentions=True)
    assert len(out.hidden_states) == 3
    assert len(out.attentions) == 2
    assert out.attentions[0].shape == (2, 2, 6, 6)


def test_compiled_outputs_are_the_same(zoo):
    model = zoo.torch_encoder()
    apply_scheme(model, "branchnorm")
    model.deepnet.advance(2000)
    expected = zoo.outputs(model)
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=counting)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*zoo.inputs(model)), expected, rtol=0, atol=1e-12)
        count = len(graphs)
        model.deepnet.advance(3000)
        torch.testing.assert_close(
            compiled(*zoo.inputs(model)), zoo.outputs(model), rtol=0, atol=1e-12
        )
    assert len(graphs) == count, "a new factor must not compile anything anew"


@pytest.mark.parametrize("name", ["Marian", "BART", "OPT", "GPT-2", "T5", "Llama"])
def test_cached_generation_equals_uncached(zoo, name):
    # the stock T5's cache wants as many decoder layers as encoder layers
    model = zoo.t5(decoder_layers=2) if name == "T5" else zoo.MODELS[name]()
    apply_scheme(model, "branchnorm")
    model.deepnet.advance(3000)
    ids = zoo.inputs(model)["input_ids"]
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
    keep = torch.ones_like(ids)
    settings |= {"attention_mask": keep, "pad_token_id": 39, "decoder_start_token_id": 1}
    cached = model.generate(ids, **settings, use_cache=True)
    assert torch.equal(cached, model.generate(ids, **settings, use_cache=False))


def devices(model: nn.Module) -> set[str]:
    return {t.device.type for t in itertools.chain(model.parameters(), model.buffers())}


@pytest.mark.parametrize("name", ["nn.Transformer", "BERT", "OPT", "GPT-2"])
@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln", "rezero"])
def test_everything_put_in_or_back_is_where_the_model_is(zoo, name, scheme):
    """The meta device stands for a GPU: a norm or a buffer that is forgotten shows."""
    elsewhere = zoo.MODELS[name]().to("meta")
    planned = plan_stacks(locate(elsewhere), load_scheme(scheme), Setting())
    attach(elsewhere, load_scheme(scheme), planned, Journal(), keep=False)
    assert devices(elsewhere) == {"meta"}
    model = zoo.MODELS[name]()
    report = apply_scheme(model, scheme)
    model.to("meta")
    report.undo()
    assert devices(model) == {"meta"}
