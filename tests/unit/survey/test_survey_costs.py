"""What a scheme costs is counted kernel by kernel, and comes to what one counts by hand."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from deepnet.schemes import post_ln
from deepnet.schemes.base import Norm, ResidualScheme, SitePlan, glorot
from deepnet.schemes.catalogue import load_scheme
from deepnet.survey.costs import cost_beside_post_ln, pass_cost

SITES = 2 * 6 + 3 * 6
TENSOR = 8 * 64 * 512 * 4  # the stream of 8 sentences of 64 positions, in bytes of float32


class Exponential(nn.Module):
    """One kernel forward, one backward (gradient times result), of which the result is kept."""

    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        return torch.exp(x)


@dataclass(frozen=True, kw_only=True)
class Raised(ResidualScheme):
    """Post-LN with the exponential of each branch."""

    def site(self, context, site):
        return SitePlan(branch=site.kind, out=Norm(Exponential), post=context.norm(), init=glorot())


def test_a_function_on_every_branch_costs_what_it_does_by_hand():
    plain, raised = (
        pass_cost(scheme, "encoder_decoder") for scheme in (post_ln.Scheme(), Raised())
    )
    assert raised.kernels - plain.kernels == SITES * 2
    assert raised.moved_bytes - plain.moved_bytes == SITES * (2 + 3) * TENSOR
    assert raised.kept_bytes - plain.kept_bytes == SITES * TENSOR


def test_post_ln_is_its_own_measure():
    assert cost_beside_post_ln(post_ln.Scheme(), "decoder_only") == pytest.approx(
        {"kernels": 1.0, "moved_bytes": 1.0, "kept_bytes": 1.0}, abs=0
    )


def test_four_streams_keep_and_move_more_than_one():
    cost = cost_beside_post_ln(load_scheme("hyper_connections", {"maps": "static"}), "encoder_only")
    # three streams more than one are read and written at each of 12 sites
    assert cost["kept_bytes"] > 1.2
    assert cost["moved_bytes"] > 1.2
