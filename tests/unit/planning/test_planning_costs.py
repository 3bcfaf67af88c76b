"""Parameters, bytes and files of a model that was never there, against one that is."""

from functools import partial

import pytest
import torch

from deepnet.bundle import model_tensors, write_tensors
from deepnet.planning.costs import find_costs
from deepnet.schemes.catalogue import load_scheme
from deepnet.tensor_files import file_bytes
from deepnet.transformer.counting import count_parameters, parameters_by_role
from deepnet.transformer.models import Transformer, TransformerConfig

SHAPE = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 16,
    "ffn_dim": 32,
    "num_heads": 2,
    "vocab_size": 30,
}


def build(scheme: str = "deepnorm", **shape: object) -> Transformer:
    return Transformer(TransformerConfig(**{**SHAPE, **shape}), load_scheme(scheme))


@pytest.mark.parametrize(
    "scheme", ["deepnorm", "dlcl", "hyper_connections", "scale_norm", "r_fixup"]
)
@pytest.mark.parametrize("tied", ["all", "none"])
def test_roles_add_up_to_the_parameters_of_each_stack(scheme, tied):
    model = build(scheme, tie_embeddings=tied, positions="learned", max_positions=50)
    found = parameters_by_role(model)
    sums = {name: sum(roles.values()) for name, roles in found.items()}
    counts = count_parameters(model)
    assert sums == {name: counts[name] for name in sums}
    assert sum(sums.values()) == sum(p.numel() for p in model.parameters())


def test_roles_of_a_small_model_are_those_counted_by_hand():
    found = parameters_by_role(build())
    assert found["encoder"] == {
        "q": 2 * 256, "k": 2 * 256, "v": 2 * 256, "out": 2 * 256, "fc1": 2 * 512, "fc2": 2 * 512,
        "bias": 2 * (4 * 16 + 32 + 16), "norm": 2 * 2 * 32,
    }  # fmt: skip
    assert found["embeddings"] == {"embedding": 30 * 16}


@pytest.mark.parametrize("scheme", ["deepnorm", "branchnorm"])
def test_a_file_has_the_size_that_was_told(tmp_path, scheme):
    tensors = model_tensors(build(scheme)) | {"number": torch.zeros((), dtype=torch.int64)}
    write_tensors(tmp_path / "x.safetensors", tensors)
    assert (tmp_path / "x.safetensors").stat().st_size == file_bytes(tensors)


def test_kinds_of_bytes_are_told_without_the_model(batch, conditions):
    numbers = sum(p.numel() for p in build().parameters())
    buffers = sum(b.nbytes for b in build().buffers())
    costs = find_costs(build, [batch], conditions=conditions(ema_decay=0.99))
    memory, tensors = costs.memory, len(list(build().parameters()))
    assert memory.weights == 4 * numbers + buffers
    assert memory.gradients == memory.average == 4 * numbers
    assert memory.optimizer == 2 * 4 * numbers + 4 * tensors  # two moments, and the step of each
    assert sum(map(sum, (roles.values() for roles in costs.parameters.values()))) == numbers


def test_a_model_with_few_tokens_needs_most_when_it_steps(batch, conditions):
    wide = partial(build, d_model=256, ffn_dim=1024)
    steps = find_costs(wide, [batch], conditions=conditions(optimizer={"name": "adafactor"}))
    assert steps.memory.moment == "step"
    largest = 4 * 256 * 1024
    assert steps.memory.at_peak["activations"] >= largest
    passes = find_costs(build, [batch], conditions=conditions())
    assert passes.memory.moment == "passes"


def test_the_batch_that_needs_most_counts(batch, conditions):
    short = type(batch)(
        batch.source[:, :2], None, batch.target_in[:, :2], batch.target_out[:, :2], 8, 8
    )
    both = find_costs(build, [short, batch], conditions=conditions())
    alone = find_costs(build, [batch], conditions=conditions())
    assert both.memory == alone.memory
    assert both.operations.forward < alone.operations.forward


def test_loops_cost_the_operations_of_all_layers_and_the_bytes_of_those_stored(batch, conditions):
    stored, looped, whole = (
        find_costs(partial(build, **shape), [batch], conditions=conditions())
        for shape in ({}, {"loops": 3}, {"encoder_layers": 6, "decoder_layers": 9})
    )
    assert looped.operations == whole.operations
    assert looped.parameters == stored.parameters
    assert looped.memory.gradients == stored.memory.gradients
    assert looped.memory.optimizer == stored.memory.optimizer
    assert looped.checkpoint == stored.checkpoint
