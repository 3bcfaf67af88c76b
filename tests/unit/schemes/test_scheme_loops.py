"""Which schemes plan layers that may run several times, and what they then compute, held against copies of layers."""

import re
from dataclasses import dataclass, replace

import cases
import pytest
import torch
from looped_models import copied, gradients, looped, stored_name, untied
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes import deepnorm
from deepnet.schemes.base import Constant, Norm, ResidualScheme, Scheduled, SitePlan, glorot
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    example_batch,
    perturbed_model,
)
from deepnet.transformer.models import STACKS

LOOPS, STORED = 2, 4
NEVER = {
    "admin",  # where its start is measured
    "attn_res block_sites=3",  # blocks that end within a pass
    "denseformer dilation=1, period=1",
    "denseformer dilation=2, period=2",
    "dlcl placement=post",
    "dlcl placement=pre",
    "mudd",
    "value_residual mix=first",  # all but the first layer have no values of their own
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
}
"""Cases whose layers have numbers, norms or draws by depth: they are looped for the stored depth."""
ROWS = [
    pytest.param(case, architecture, id=f"{case.name}{dict(case.options)} {architecture}")
    for case in cases.CASES
    for architecture in case_architectures(case)
]


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


@dataclass(frozen=True, kw_only=True)
class ByLoops(ResidualScheme):
    """A scheme whose skip is scaled by the times that its layers run."""

    def site(self, context, site):
        skip = Constant(float(context.loops))
        return SitePlan(branch=site.kind, post=context.norm(), skip=skip, init=glorot())


def test_a_scheme_may_answer_by_the_loops_and_its_coefficients_say_so():
    model = looped(ByLoops(), loops=3)
    assert {site.residual.skip for site in model.sites()} == {3.0}
    found = coefficients(ByLoops(), **model.config.planned_layers, loops=3)
    assert found["encoder"]["alpha"] == found["decoder"]["alpha"] == 3.0


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


@dataclass(frozen=True, kw_only=True)
class MorePartsAbove(deepnorm.Scheme):
    """A scheme whose norms above the second layer hold a part more than those below."""

    def site(self, context, site):
        parts = 1 + (site.layer > 2)
        norm = Norm(lambda width: nn.Sequential(*(nn.Identity() for _ in range(parts))))
        return replace(super().site(context, site), post=norm)


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
        (MorePartsAbove(), "another post"),
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
