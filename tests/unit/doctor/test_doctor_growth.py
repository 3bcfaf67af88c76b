"""What is said of sizes over depth, on sizes whose power of depth is known."""

import pytest

from deepnet.doctor.growth import LIMIT, DepthCheck, Line, lines_of
from deepnet.doctor.sizes import CHANGE

DEPTHS = (6, 18, 50, 100)
STREAM, GRADIENT = "stream of the decoder", "gradient of the decoder"


def check(change=0.0, stream=0.0, gradient=0.0, *, factor=1e-3, lost=()):
    """Return a check of powers of depth, the gradient's of first over last layer; no updates at the depths `lost`."""
    readings = {
        layers: []
        if layers in lost
        else [
            {
                "step": 10,
                STREAM: [layers**stream] * 2,
                GRADIENT: [layers**gradient / layers, 1 / layers],
                CHANGE: [factor * layers**change],
            }
        ]
        for layers in DEPTHS
    }
    return DepthCheck(
        lines=lines_of(readings, updates=(10,)), depths=DEPTHS, updates=(10,), trial={}
    )


@pytest.mark.parametrize("power", [-1.5, -0.3, 0.0, 0.25, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    sizes = {layers: 7.0 * layers**power for layers in DEPTHS}
    line = Line(quantity=STREAM, of="last", update=1, sizes=sizes)
    assert line.exponent == pytest.approx(power, abs=1e-12)


@pytest.mark.parametrize("sizes", [{6: 1.0, 18: None}, {6: 0.0, 18: 1.0}])
def test_of_a_size_that_is_missing_or_zero_there_is_no_exponent(sizes):
    assert Line(quantity=STREAM, of="last", update=1, sizes=sizes).exponent is None


def test_what_is_level_carries_over():
    found = check(change=0.2, stream=-0.2, gradient=0.24)
    assert (found.rate_carries_over, found.coefficients_carry_over) == (True, True)
    assert "goes as depth^0.20" in found.says()
    assert "a rate tuned at 6 layers carries over to 100; " in found.says()
    assert found.says().endswith("the coefficients carry over to 100")


@pytest.mark.parametrize(
    ("power", "words"),
    [  # 100 / 6 to that power
        (0.45, "grows as depth^0.45: a rate tuned at 6 layers is 3.5 times too high at 100"),
        (-1.0, "falls as depth^-1.00: a rate tuned at 6 layers is 16.7 times too low at 100"),
    ],
)
def test_a_change_that_goes_with_depth_says_by_what_factor_the_rate_is_off(power, words):
    found = check(change=power)
    assert not found.rate_carries_over
    assert words in found.says()
    assert found.coefficients_carry_over


def test_a_stream_or_gradient_that_goes_with_depth_is_one_of_coefficients():
    found = check(stream=0.5, gradient=-3.0)
    assert (found.rate_carries_over, found.coefficients_carry_over) == (True, False)
    said = found.says().partition("; ")[2]
    assert said == (
        "the stream of the decoder grows as depth^0.50, the gradient of the decoder, first over last layer, "
        "falls as depth^-3.00: the coefficients do not carry over to 100"
    )


def test_the_limit_is_a_factor_of_two_over_the_depths_of_table_1():
    assert pytest.approx(2.0, abs=0.03) == (100 / 6) ** LIMIT


def test_where_updates_were_not_finite_nothing_carries_over():
    found = check(lost=(50, 100))
    assert found.lost == [50, 100]
    assert (found.rate_carries_over, found.coefficients_carry_over) == (False, False)
    assert found.says().startswith("at 50, 100 layers not all 10 updates were finite: neither")
    assert found.to_dict()["lines"][0]["exponent"] is None


def test_a_level_change_that_replaced_every_output_tells_nothing_of_a_rate_that_fits():
    found = check(change=0.0, factor=1.4)
    assert not found.rate_carries_over
    assert found.says().startswith("one update replaces the output at 6, 18, 50, 100 layers: ")


def test_a_stack_is_kept_by_its_ends_middle_and_median():
    readings = {n: [{"step": 1, STREAM: [3.0, 1.0, 5.0, 4.0], CHANGE: [0.1]}] for n in (2, 4)}
    lines = [line for line in lines_of(readings, updates=(1,)) if line.quantity == STREAM]
    found = {line.of: line.sizes[4] for line in lines}
    expected = {"first": 3.0, "middle": 1.0, "last": 4.0, "median": 3.5, "first over last": 0.75}
    assert found == expected


def test_an_update_at_which_nothing_grows_any_more_does_not_hide_how_it_grew():
    powers = {1: 0.5, 2: 0.1, 10: 0.1}
    readings = {
        n: [{"step": step, CHANGE: [0.01 * n**power]} for step, power in powers.items()]
        for n in DEPTHS
    }
    found = DepthCheck(
        lines=lines_of(readings, updates=(1, 2, 10)), depths=DEPTHS, updates=(1, 2, 10), trial={}
    )
    assert "grows as depth^0.50" in found.says()
