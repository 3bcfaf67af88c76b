"""The depth coordinate check: what the first updates do to a recipe's proxy at several depths.

Yang et al. check in this way that nothing grows with the width (arXiv 2203.03466, appendix D.1); here it is the depth.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepnet.doctor.case import Case, make_case
from deepnet.doctor.growth import DepthCheck, lines_of
from deepnet.doctor.proxy import at_depth
from deepnet.doctor.sizes import Sizes
from deepnet.doctor.trial import STEPS
from deepnet.errors import ConfigError
from deepnet.pipeline.preparing import CACHE, Report, prepare_data
from deepnet.pipeline.recipe import Recipe

DEPTHS = (6, 18, 50, 100)
"""Layers of each stack, those of DeepNet's Table 1."""
UPDATES = (1, 2, 5, 10)
"""After which sizes are read."""
MOST_LAYERS = 1000
"""Of each stack: a proxy that deep is estimated to take 10 GB."""


def check_depths(
    recipe: Recipe,
    depths: Sequence[int] = DEPTHS,
    *,
    cache: Path = CACHE,
    report: Report | None = None,
) -> DepthCheck:
    """Return the sizes of a recipe's proxy after its first ten updates, at several depths, on the CPU in float32.

    The updates are the first of the doctor's trial: on the recipe's text, at its rate, the warm-up pressed into the
    trial. Prepares the text, and writes nothing else. Raises ConfigError for depths that cannot be compared.
    """
    depths = _checked(depths)
    data = prepare_data(recipe, cache=cache, report=report)
    found: dict[int, list[dict[str, Any]]] = {}
    for number, layers in enumerate(depths, start=1):
        case = make_case(at_depth(recipe, layers), data, steps=STEPS)
        found[layers] = _readings(case)
        if report:
            report(f"{layers} layers: {number} of {len(depths)} depths")
    return DepthCheck(
        lines=lines_of(found, updates=UPDATES),
        depths=depths,
        updates=UPDATES,
        trial={"scheme": recipe.scheme["name"], **_described(case)},
    )


def _readings(case: Case) -> list[dict[str, Any]]:
    model, batch = case.model(), case.looked_at
    sizes = Sizes(model, lambda m: m(batch.source, batch.source_keep, batch.target_in))
    return case.train(model, sizes, steps=UPDATES[-1], at=UPDATES).readings


def _described(case: Case) -> dict[str, Any]:
    about = case.described() | {"updates": UPDATES[-1]}
    return {key: value for key, value in about.items() if not key.endswith("coder_layers")}


def _checked(depths: Sequence[int]) -> list[int]:
    found = sorted(set(depths))
    if len(found) < 2 or len(found) < len(depths) or found[0] < 2 or found[-1] > MOST_LAYERS:
        raise ConfigError(
            f"depths are {', '.join(map(str, depths)) or 'none'}; expected at least two, all different, "
            f"from 2 to {MOST_LAYERS:,} layers"
        )
    return found
