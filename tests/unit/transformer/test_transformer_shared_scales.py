"""Trained scales of one name: one parameter, or an error where they are not the same."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.base import Learned, Site
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
