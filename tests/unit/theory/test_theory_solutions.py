import ast
import inspect

import pytest

from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.theory import bounds
from deepnet.theory import solutions as solved
from deepnet.theory.solutions import solve_encoder_decoder, solve_essay, solve_stack

DEPTHS = [(1, 1), (6, 6), (18, 18), (100, 6), (6, 100), (500, 500)]


@pytest.mark.parametrize("layers", [1, 6, 100, 1000])
def test_single_stack_solves_to_the_papers_closed_form(layers):
    found = solve_stack(layers)
    assert found.alpha == pytest.approx((2 * layers) ** 0.25, rel=1e-12)
    assert found.beta == pytest.approx((8 * layers) ** -0.25, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_decoder_solves_to_the_papers_closed_form(n, m):
    found = solve_encoder_decoder(n, m)["decoder"]
    assert found.alpha == pytest.approx((3 * m) ** 0.25, rel=1e-12)
    assert found.beta == pytest.approx((12 * m) ** -0.25, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_encoder_solves_to_what_the_paper_rounds_to_081_and_087(n, m):
    found, root = solve_encoder_decoder(n, m)["encoder"], (n**4 * m) ** (1 / 16)
    assert round(found.alpha / root, 4) == 0.8138
    assert round(found.beta * root, 4) == 0.8689
    assert 2 * found.beta**2 == pytest.approx(found.alpha**-2, rel=1e-12)


@pytest.mark.parametrize("family", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("layers", [1, 50, 1000])
def test_essay_solves_to_the_schemes_coefficients(family, layers):
    scheme = load_scheme("deepnorm", {"convention": "essay"})
    expected = coefficients(
        scheme, encoder_layers=0, decoder_layers=layers, optimizer_family=family
    )["decoder"]
    found = solve_essay(layers, optimizer=family)
    assert found.alpha == pytest.approx(expected["alpha"], rel=1e-12)
    assert found.beta == pytest.approx(expected["beta"], rel=1e-12)


def test_the_schemes_paper_coefficients_meet_the_bound_as_the_specification_says():
    n, m = 18, 18
    row = coefficients(load_scheme("deepnorm"), encoder_layers=n, decoder_layers=m)
    encoder, decoder = (
        bounds.SiteScales(kind="cross", v=row[s]["beta"], w=row[s]["beta"], alpha=row[s]["alpha"])
        for s in ("encoder", "decoder")
    )
    through = bounds.memory_passed_on([decoder] * m)
    own = bounds.stack_update([encoder] * 2 * n, bounds.sgd_steps([encoder] * 2 * n))
    assert through * own == pytest.approx(1.012, abs=1e-3)


def test_nothing_is_taken_from_the_schemes():
    """Neither module imports a scheme's formula: only the names of branches and of families of optimisers."""
    for module in (solved, bounds):
        imports = [
            n
            for n in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(n, ast.ImportFrom)
        ]
        taken = {
            a.name
            for n in imports
            if (n.module or "").startswith("deepnet.schemes")
            for a in n.names
        }
        assert taken <= {"Branch", "OptimizerFamily"}
