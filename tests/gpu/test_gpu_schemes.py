"""Every scheme computes on the device what it computes on a CPU in float64: forward, backward, and token by token."""

import cases
import pytest
import torch

from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.search import search
from deepnet.testing.scheme_models import case_architectures, example_batch, perturbed_model

pytestmark = pytest.mark.gpu

ROWS = [
    pytest.param(case, architecture, id=f"{case.name}{dict(case.options)}-{architecture}")
    for case in cases.CASES
    for architecture in case_architectures(case)
]
LIMITS = {
    # rounding is 1e-16, and a thousand products add some of it up
    "float64": (1e-9, 1e-9),
    # rounding is 6e-8; with TF32, whose rounding is 5e-4, this fails
    "float32": (1e-4, 1e-4),
    # rounding is 2e-3, and about twenty products in a row are rounded forward, forty with those backward; all gradients
    # in one, as that of a single number is a sum of terms that cancel
    "bfloat16": (3e-2, 8e-2),
}
"""Of the errors of logits and gradients, in parts of what they are."""


def outcomes(case, architecture, device, *, precision):
    """Return the logits and every parameter's gradient, in float64 on the CPU.

    With GELU: rounding moves nothing across a corner, as it can with ReLU.
    """
    model = perturbed_model(case, architecture, activation="gelu").to(device)
    if precision != "float64":
        model = model.float()
    batch = [None if part is None else part.to(device) for part in example_batch(architecture)]
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(*batch)
    aim = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    logits.backward(aim.to(logits))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return [
        {name: tensor.detach().cpu().double() for name, tensor in found.items()}
        for found in ({"logits": logits}, gradients)
    ]


def relative_errors(found, expected):
    """Return by name the L2 norm of the error, in parts of the tensor's own, with a hundredth of all of them added.

    So that what has no gradient but rounding, such as the bias of keys, is measured by the others.
    """
    whole = torch.stack([tensor.norm() for tensor in expected.values()]).norm()
    assert found.keys() == expected.keys()
    return {
        name: float((found[name] - tensor).norm() / (tensor.norm() + 0.01 * whole))
        for name, tensor in expected.items()
    }


def in_one(tensors):
    return {"all": torch.cat([tensor.flatten() for tensor in tensors.values()])}


@pytest.mark.parametrize("precision", list(LIMITS))
@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_both_passes_are_those_of_the_cpu_in_float64(case, architecture, device, precision):
    found = outcomes(case, architecture, device, precision=precision)
    expected = outcomes(case, architecture, torch.device("cpu"), precision="float64")
    if precision == "bfloat16":
        found[1], expected[1] = in_one(found[1]), in_one(expected[1])
    logits, gradients = map(relative_errors, found, expected)
    worst = max(gradients, key=gradients.get)
    assert logits["logits"] < LIMITS[precision][0]
    assert gradients[worst] < LIMITS[precision][1], worst


@pytest.mark.parametrize(
    "settings", [{"beam_size": 3}, {"method": "sampling"}], ids=["beam", "sampling"]
)
@pytest.mark.parametrize(
    "case",
    [row for row in cases.CASES if "encoder_decoder" in case_architectures(row)],
    ids=lambda case: f"{case.name}{dict(case.options)}",
)
def test_search_with_a_cache_finds_what_it_finds_on_the_cpu(case, device, settings):
    source, keep, _ = example_batch("encoder_decoder")
    config = DecodingConfig(n_best=3, max_length_ratio=0.0, max_length_constant=8, **settings)
    found, expected = (
        search(
            perturbed_model(case, "encoder_decoder").to(place),
            source.to(place),
            keep.to(place),
            config=config,
        )
        for place in (device, torch.device("cpu"))
    )
    assert [[h.tokens for h in row] for row in found] == [
        [h.tokens for h in row] for row in expected
    ]
    scores = [[h.score for row in rows for h in row] for rows in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
