"""Sizes as people write them, and the ways to train in the order of what they cost."""

import pytest

from deepnet.config import build
from deepnet.errors import ConfigError
from deepnet.planning.budget import MemoryConfig, describe_way, list_ways
from deepnet.planning.wording import to_bytes
from deepnet.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ("8GB", 8 * 10**9),
        ("8 GiB", 8 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5TB", 1.5 * 10**12),
        ("3kB", 3000),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("70B", 70),
    ],
)
def test_a_size_is_a_number_and_a_unit(said, size):
    assert to_bytes(said) == size
    assert MemoryConfig(budget=said).num_bytes == size


@pytest.mark.parametrize("said", ["8", "8 gigs", "GB", "-3GB", "0GB", "8iB", "8gb"])
def test_what_is_no_size_is_refused_with_what_would_be(said):
    with pytest.raises(
        ConfigError, match=rf"'memory.budget' is '{said}': expected .* '8GB'"
    ) as error:
        build(MemoryConfig, {"budget": said}, where="memory")
    assert "\n" not in str(error.value)


def test_no_budget_is_no_limit():
    assert MemoryConfig().num_bytes == 0


def ways(*, depth=18, steps_in_backward=True, **asked):
    training = TrainingConfig(max_steps=1, **asked)
    found = list_ways(training, depth=depth, steps_in_backward=steps_in_backward)
    return [describe_way(way, training) for way in found]


SEGMENT, STEPS = "training.recompute_segment = 0", "training.step_in_backward = true"
RECOMPUTE = "training.recompute = true"


def test_the_fastest_way_comes_first():
    assert ways() == [
        "as the recipe says",
        STEPS,
        RECOMPUTE,
        f"{RECOMPUTE} and {STEPS}",
        f"{RECOMPUTE} and {SEGMENT}",
        f"{RECOMPUTE} and {SEGMENT} and {STEPS}",
    ]


def test_a_deep_stack_may_keep_fewer_states_at_the_same_price():
    # the root of 350 / 14
    assert ways(depth=350, steps_in_backward=False) == [
        "as the recipe says",
        RECOMPUTE,
        f"{RECOMPUTE} and training.recompute_segment = 5",
        f"{RECOMPUTE} and {SEGMENT}",
    ]


def test_what_the_recipe_asks_for_is_kept():
    found = ways(recompute=True, step_in_backward=True)
    assert found == ["as the recipe says", SEGMENT]
    assert ways(recompute=True, recompute_segment=4, steps_in_backward=False) == [
        "as the recipe says",
        SEGMENT,
    ]
    assert ways(recompute=True, recompute_segment=0, steps_in_backward=False) == [
        "as the recipe says"
    ]
