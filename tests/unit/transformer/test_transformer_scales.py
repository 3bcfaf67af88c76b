"""Scales of a stack: which are plain numbers and which modules, and which are one parameter."""

import pytest
import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import Constant, Learned, Site, SitePlan
from deepnet.transformer.scales import ScaleBuilder

SITE = Site(stack="encoder", layer=1, index=1, kind="ffn", first_in_layer=True, last_in_layer=True)


def test_scales_of_one_name_are_one_parameter():
    builder, plan = ScaleBuilder([]), Learned(init=0.5, scope="layer", name="gate")
    skip, branch = (builder.make(plan, width=4, site=SITE, use=use) for use in ("skip", "branch"))
    assert skip.factor is branch.factor


def test_scales_of_one_name_that_differ_are_refused():
    builder, plan = ScaleBuilder([]), Learned(init=0.5, name="gate", transform=torch.sigmoid)
    builder.make(plan, width=4, site=SITE, use="skip")
    other = Learned(init=0.5, name="gate", transform=torch.tanh)
    with pytest.raises(ConfigError, match="two scales are called 'gate' and differ"):
        builder.make(other, width=4, site=SITE, use="branch")


@pytest.mark.parametrize("use", ["skip", "branch"])
def test_a_constant_is_a_number_where_all_sites_have_the_same_one(use):
    field = {"skip": "skip", "branch": "branch_scale"}[use]
    plans = [SitePlan(branch="ffn", **{field: Constant(value)}) for value in (0.5, 2.0)]
    same, apart = ScaleBuilder(plans[:1] * 3), ScaleBuilder(plans)
    assert same.make(Constant(0.5), width=4, site=SITE, use=use) == 0.5
    assert isinstance(apart.make(Constant(0.5), width=4, site=SITE, use=use), nn.Module)


def test_a_constant_of_heads_is_a_module():
    assert isinstance(
        ScaleBuilder([]).make(Constant(0.5), width=4, site=SITE, use="heads"), nn.Module
    )
