"""How many kernels a pair of layers runs in training on a CPU: no more than when this was written.

What counts as one is said in benchmarks/kernels_worker.py. Commit e7b65c9 ran 96 forward with sinusoidal positions and
128 with rotary ones up to 32 keys, and 67 and 105 beyond. Who lowers a number lowers it here.
"""

import pytest
import torch

from deepnet.probes.norm_input import NormInputs
from kernels_worker import Kernels, kernels

MOST = [
    ("deepnorm", "sinusoidal", 22, 69, 108),
    ("deepnorm", "sinusoidal", 44, 56, 89),
    ("deepnorm", "rotary", 22, 77, 120),
    ("deepnorm", "rotary", 44, 66, 101),
    ("pre_ln", "sinusoidal", 22, 64, 103),
    ("pre_ln", "sinusoidal", 44, 51, 84),
    ("pre_ln", "rotary", 22, 72, 115),
    ("pre_ln", "rotary", 44, 61, 96),
]


@pytest.mark.parametrize(("scheme", "positions", "length", "forward", "backward"), MOST)
def test_a_layer_pair_runs_no_more_kernels_than_it_did(
    scheme, positions, length, forward, backward
):
    found = kernels(scheme, positions, length)
    assert found["forward"].total() <= forward, found["forward"]
    assert found["backward"].total() <= backward, found["backward"]


def test_views_and_memory_are_no_kernels():
    x = torch.randn(3, 4)
    with Kernels() as counted:
        torch.empty(3, 4)
        y = x.t().reshape(2, 6).view(12).add_(1.0).expand(2, 12)[1:]
        y.sum()
    assert counted.names == {"clone": 1, "add_": 1, "sum": 1}  # the reshape copies


def test_who_has_listened_to_the_norms_leaves_no_kernel_behind(make_model, sentences):
    def counted():
        model.zero_grad()
        with Kernels() as found:
            model(*sentences).sum().backward()
        return found.names

    model = make_model()
    before, norms = counted(), NormInputs(model)
    with norms.open():
        heard = counted()
    assert counted() == before
    assert heard.total() > before.total()
