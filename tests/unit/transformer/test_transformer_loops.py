"""Layers that run several times with the same weights: held against a model of all of them whose weights are copies."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import cases
import pytest
import torch
from torch import nn

from deepnet.bundle import load_bundle, save_bundle
from deepnet.errors import CheckpointError, ConfigError
from deepnet.probes.place import Place
from deepnet.probes.recorder import Recorder
from deepnet.rebuild import check_shape
from deepnet.schemes import deepnorm
from deepnet.schemes.base import ResidualScheme, Scheduled, SitePlan, glorot
from deepnet.schemes.catalogue import load_scheme
from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    example_batch,
    example_loss,
    perturbed_model,
)
from deepnet.training.engine.recompute import recomputed
from deepnet.transformer.config import as_recorded
from deepnet.transformer.initialize import initialization_report
from deepnet.transformer.models import STACKS, Transformer, TransformerConfig

LOOPS, STORED = 2, 4
NEVER = {
    "admin",  # where its start is measured
    "attn_res block_sites=3",  # blocks that end within a pass
    "denseformer dilation=1, period=1",
    "denseformer dilation=2, period=2",
    "dlcl placement=post",
    "dlcl placement=pre",
    "mudd",
    "value_residual mix=learned",  # the first layer has no number to mix by
    "x0 start=nanochat",
}
"""Cases whose layers hold other modules by depth, or measure themselves where they run."""
BY_NUMBER = {
    "deepscale_lm placement=post",
    "deepscale_lm placement=pre",
    "ds_init",
    "ds_init merged=True",
    "hybrid_norm first_pre_norm=True",
    "keel",
    "layernorm_scaling",
    "mix_ln ratio=0.5",
    "post_ln_init",
    "prores base=post_ln",
    "prores base=pre_ln",
    "siamese_norm",
    "value_residual mix=first",  # all but the first layer have no values of their own
}
"""Cases whose layers have numbers, norms or draws by depth: they are looped for the stored depth."""
ROWS = [
    pytest.param(case, architecture, id=f"{case.name}{dict(case.options)} {architecture}")
    for case in cases.CASES
    for architecture in case_architectures(case)
]


def stored_name(name, stored):
    """Return the name in a model of so many stored layers of what an untied one calls `name`."""
    return re.sub(r"\.layers\.(\d+)\.", lambda m: f".layers.{int(m[1]) % stored}.", name)


def depth(model):
    """Return the stored layers of a stack of a model whose stacks have as many."""
    return len(model.stacks()[0].layers)


def untied(looped, scheme=None):
    """Return the model of all layers that run, of its scheme or another one, not filled yet."""
    config = looped.config
    changed = {**config.running_layers, "loops": 1, "coefficient_depth": "unrolled"}
    return Transformer(config.model_copy(update=changed), scheme or looped.scheme).double()


def copied(looped, scheme=None):
    """Return the model of all layers that run, with the weights of the looped one."""
    model, held, stored = untied(looped, scheme), looped.state_dict(), depth(looped)
    model.load_state_dict({name: held[stored_name(name, stored)] for name in model.state_dict()})
    model.scheme.advance(model, int(looped.scheme_step))
    return model


def label(case):
    """Return a case's name and options."""
    return f"{case.name} {', '.join(f'{k}={v}' for k, v in case.options.items())}".strip()


def refusal(case, architecture, **shape):
    """Return why a case's scheme is not looped, "" where it is."""
    try:
        case_model(case, architecture, layers=STORED, loops=LOOPS, **shape)
    except ConfigError as error:
        return str(error)
    return ""


def gradients(model, batch, *, stored):
    """Return the gradients by name, those of copies of one weight added up."""
    model.zero_grad()
    example_loss(model, batch).backward()
    found = defaultdict(float)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[stored_name(name, stored)] += parameter.grad
    return dict(found)


def looped(scheme="deepnorm", options=None, **shape):
    """Return a small looped model in float64."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32, "num_heads": 2}
    config = TransformerConfig(**{**sizes, "vocab_size": 30, "dropout": 0.0, "loops": 3, **shape})
    named = load_scheme(scheme, options or {}) if isinstance(scheme, str) else scheme
    return Transformer(config, named).double()


# What it computes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_it_is_the_model_of_all_its_layers_with_copied_weights_or_is_refused(case, architecture):
    if reason := refusal(case, architecture):
        assert label(case) in NEVER | BY_NUMBER
        assert "model.loops" in reason
        assert "\n" not in reason
        return
    model = perturbed_model(case, architecture, layers=STORED, loops=LOOPS)
    whole, batch = copied(model), example_batch(architecture)
    torch.testing.assert_close(model(*batch), whole(*batch), rtol=1e-12, atol=1e-12)
    found, expected = (gradients(one, batch, stored=STORED) for one in (model, whole))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12, msg=name)


@dataclass(frozen=True, kw_only=True)
class Repeated(ResidualScheme):
    """Another scheme's plan of the stored layers, again and again for all that run."""

    base: ResidualScheme

    def stack(self, context):
        whole = self.base.stack(context)
        stored = {f"{name}_layers": getattr(context, f"{name}_layers") // LOOPS for name in STACKS}
        plan = self.base.stack(replace(context, **stored))
        width, depth = len(plan.sites) // STORED, STORED
        sites = tuple(
            (replace(site, layer=site.layer + n * depth, index=site.index + n * depth * width), one)
            for n in range(LOOPS)
            for site, one in plan.sites
        )
        return replace(plan, sites=sites, stream=whole.stream)


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_for_the_stored_depth_it_is_the_plan_of_that_depth_again_and_again(case, architecture):
    if refusal(case, architecture, coefficient_depth="stored"):
        assert label(case) in NEVER
        return
    shape = {"layers": STORED, "loops": LOOPS, "coefficient_depth": "stored"}
    model = perturbed_model(case, architecture, **shape)
    whole, batch = copied(model, Repeated(base=model.scheme)), example_batch(architecture)
    torch.testing.assert_close(model(*batch), whole(*batch), rtol=1e-12, atol=1e-12)


def test_which_schemes_are_looped_and_which_are_not():
    """The table of docs/loops.md."""
    for shape, expected in (({}, NEVER | BY_NUMBER), ({"coefficient_depth": "stored"}, NEVER)):
        refused = [c for c in cases.CASES if refusal(c, case_architectures(c)[0], **shape)]
        assert set(map(label, refused)) == expected


def test_coefficients_are_those_of_all_layers_that_run_or_of_those_stored():
    def numbers(**shape):
        stack = looped(decoder_layers=0, architecture="encoder_only", **shape).encoder
        site = stack.sites()[0].residual
        return site.skip, site.plan.init["v"].value, len(stack.layers)

    shape = {"encoder_layers": 6, "loops": 3}
    assert numbers(**shape) == (pytest.approx(36**0.25), pytest.approx(144**-0.25), 6)
    stored = numbers(**shape, coefficient_depth="stored")
    assert stored == (pytest.approx(12**0.25), pytest.approx(48**-0.25), 6)


def test_an_encoder_decoder_counts_the_passes_of_both_stacks():
    encoder, decoder = (
        stack.sites()[0].residual.skip for stack in looped(encoder_layers=3, loops=4).stacks()
    )
    assert encoder == pytest.approx(0.81 * (12**4 * 8) ** (1 / 16))
    assert decoder == pytest.approx(24**0.25)


def test_weights_start_with_the_gain_of_all_layers_that_run():
    torch.manual_seed(1)
    model = looped(d_model=64, ffn_dim=256, decoder_layers=0, architecture="encoder_only", loops=9)
    report = {row.role: row for row in initialization_report(model)}
    beta = 144**-0.25
    assert report["v"].expected_std == pytest.approx(beta / 8)
    assert report["q"].expected_std == pytest.approx(1 / 8)
    assert all(row.standard_errors < 5 for row in report.values())


def test_the_parameters_are_those_of_the_stored_layers():
    def names(loops):
        return {name: p.shape for name, p in looped(loops=loops).named_parameters()}

    assert names(3) == names(1)


def test_numbers_of_the_stored_layers_repeat_at_every_pass():
    """LayerNorm-Scaling divides each norm by the root of its layer: written into the gains of a Pre-LN of six."""
    model = looped("layernorm_scaling", coefficient_depth="stored")
    plain = untied(model, load_scheme("pre_ln", {}))
    held = {name.replace(".norm.", "."): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in plain.state_dict().items():
        layer = re.search(r"layers\.(\d+)\..*residual\.pre", name)
        factor = (int(layer[1]) % 2 + 1) ** -0.5 if layer else 1.0
        tensor.copy_(held[stored_name(name, 2)] * factor)
    batch = example_batch("encoder_decoder")
    torch.testing.assert_close(model(*batch), plain(*batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res", "mhc", "resi_dual"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_decoding_with_a_cache_is_exact(scheme, positions, sentences):
    model = looped(scheme, positions=positions).eval()
    source, keep, target = sentences
    with torch.no_grad():
        expected = model(source, keep, target)
        cache = model.begin(model.encode(source, keep), keep)
        steps = [model.step(target[:, [t]], t, cache) for t in range(target.shape[1])]
    assert len(cache.layers) == 6
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-12, atol=1e-12)


def test_a_hypothesis_that_is_kept_keeps_what_every_pass_has_of_it(sentences):
    model = looped().eval()
    source, keep, target = sentences
    rows = torch.tensor([2, 0])
    with torch.no_grad():
        expected = model(source[rows], keep[rows], target[rows])[:, -1:]
        cache = model.begin(model.encode(source, keep), keep)
        for t in range(target.shape[1] - 1):
            model.step(target[:, [t]], t, cache)
        cache.select(rows)
        last = target.shape[1] - 1
        found = model.step(target[rows][:, [last]], last, cache)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# How it is made, computed and kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["deepnorm", "mhc", "gpas"])
def test_it_is_made_without_memory_as_in_place(scheme):
    torch.manual_seed(3)
    direct = looped(scheme)
    with torch.device("meta"):
        made = looped(scheme)
    made.to_empty(device="cpu")
    torch.manual_seed(3)
    made.float().reset_parameters()
    made.double()
    for name, tensor in direct.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor), name


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res", "mhc"])
def test_recompute_changes_no_bit_of_its_gradients(scheme):
    model = looped(scheme, dropout=0.1).train()
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    seen = []
    for again in ([], blocks):
        torch.manual_seed(2)
        with recomputed(again):
            seen.append(gradients(model, example_batch("encoder_decoder"), stored=2))
    assert seen[0].keys() == seen[1].keys()
    assert all(torch.equal(seen[1][name], x) for name, x in seen[0].items())


def test_a_bundle_brings_it_back(tmp_path):
    model = looped().float().eval()
    save_bundle(tmp_path / "bundle", model)
    loaded = load_bundle(tmp_path / "bundle").model
    assert (loaded.config.loops, loaded.config.coefficient_depth) == (3, "unrolled")
    batch = example_batch("encoder_decoder")
    assert torch.equal(loaded.eval()(*batch), model(*batch))


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res"])
def test_a_bundle_of_many_passes_is_brought_back(scheme, tmp_path):
    model = looped(scheme, loops=60).float()
    save_bundle(tmp_path / "bundle", model)
    assert load_bundle(tmp_path / "bundle").model.config.loops == 60


def test_passes_that_a_file_of_that_size_is_not_trusted_with_are_refused():
    model = looped(d_model=4, ffn_dim=4, encoder_layers=50, decoder_layers=50, loops=1)
    config = model.config.model_copy(update={"loops": 1000})
    with pytest.raises(CheckpointError, match="100 layers run 1000 times"):
        check_shape(config, model.state_dict())
    check_shape(config.model_copy(update={"loops": 100}), model.state_dict())


def test_a_shape_that_says_nothing_of_loops_has_none():
    recorded = as_recorded({"encoder_layers": 2, "decoder_layers": 2})
    assert TransformerConfig(**recorded).loops == 1


def test_it_is_planned_once_for_the_layers_that_run():
    @dataclass(frozen=True, kw_only=True)
    class Asked(ResidualScheme):
        seen: list

        def site(self, context, site):
            self.seen.append((context.loops, context.num_layers, site.layer))
            return SitePlan(branch=site.kind, post=context.norm(), init=glorot())

    scheme = Asked(seen=[])
    looped(scheme, architecture="decoder_only", encoder_layers=0)
    assert scheme.seen == [(3, 6, layer) for layer in range(1, 7) for _ in range(2)]


# What is refused ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OwnFunctions(deepnorm.Scheme):
    """A scheme whose schedules are functions of their own, or one for all sites."""

    own: bool = True

    def site(self, context, site):
        at = (lambda step: 1.0) if self.own else float
        return replace(super().site(context, site), branch_scale=Scheduled(at))


@dataclass(frozen=True, kw_only=True)
class FewerAbove(deepnorm.Scheme):
    """A scheme whose layers above the second are feed-forwards alone."""

    def stack(self, context):
        plan = super().stack(context)
        return replace(
            plan,
            sites=tuple(one for one in plan.sites if one[0].layer < 3 or one[0].kind == "ffn"),
        )


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("keel", r"layers 1 and 3 of the 6 encoder layers that run one of 2 .*another post"),
        ("layernorm_scaling", r"another pre .*coefficient_depth = 'stored'"),
        ("post_ln_init", r"another init"),
        ("dlcl", r"other modules \(embedding\).*set model.loops = 1"),
        (load_scheme("attn_res", {"block_sites": 5}), "layers 1 and 3 .*other modules"),
        ("admin", "admin measures .*scheme.form"),
        (OwnFunctions(), "another branch_scale"),
        (FewerAbove(), "they have 2 and 1 sites"),
    ],
)
def test_what_cannot_be_one_layer_is_refused_in_one_line(scheme, message):
    with pytest.raises(ConfigError, match=message) as error:
        looped(scheme)
    assert "\n" not in str(error.value)


def test_one_function_for_all_sites_is_the_same_at_every_pass():
    assert looped(OwnFunctions(own=False)).config.loops == 3


def test_a_state_that_grows_with_the_layers_is_refused_for_the_stored_depth_as_well():
    with pytest.raises(ConfigError, match="other modules"):
        looped("dlcl", coefficient_depth="stored")


def test_numbers_by_layer_are_taken_for_the_stored_depth():
    model = looped("keel", coefficient_depth="stored")
    first, second = (layer.sublayers["self"].residual for layer in model.encoder.layers)
    assert first.post is None
    assert second.post is not None


def test_a_depth_of_coefficients_without_loops_has_no_effect_and_is_refused():
    with pytest.raises(ValueError, match="coefficient_depth = 'stored' has no effect with loops"):
        TransformerConfig(coefficient_depth="stored")


# What is measured ---------------------------------------------------------------------------------------------------


def record_of(model, batch):
    return Recorder(model, lambda m: m(*batch)).measure()


def test_probes_read_a_stored_layer_over_all_its_passes():
    model, batch = looped().eval(), example_batch("encoder_decoder")
    whole = copied(model).eval()
    found, expected = record_of(model, batch), record_of(whole, batch)
    for probe, power in (("norm_input", 2), ("sparsity", 1), ("attention_entropy", 1)):
        for key, row in found[probe].items():
            passes = torch.tensor(expected[probe][key], dtype=torch.float64)
            pooled = passes.pow(power).view(-1, len(row)).mean(0).pow(1 / power)
            torch.testing.assert_close(
                torch.tensor(row, dtype=torch.float64), pooled, rtol=1e-4, atol=1e-6
            )


def test_what_a_layer_returned_is_that_of_its_last_pass():
    model, batch = looped().eval(), example_batch("encoder_decoder")
    first = Recorder(model, lambda m: m(*batch)).first_outputs()
    with torch.no_grad():
        expected = model.encode(batch[0], batch[1])
    torch.testing.assert_close(first[str(Place("encoder", 2))], expected)


def test_every_module_runs_once_per_loop():
    model, calls = looped(), Counter()
    for layer in model.encoder.layers:
        nn.Module.register_forward_hook(layer, lambda module, *_: calls.update([module]))
    model(*example_batch("encoder_decoder"))
    assert list(calls.values()) == [3, 3]
    assert list(calls) == list(model.encoder.layers)
