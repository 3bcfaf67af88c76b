"""DeepNet's bound against the first update that a model really makes, by scheme and depth.

python benchmarks/first_update.py

Writes results/first_update: the movement of the last stack's output that Theorems 4.2 and 4.3 predict from the model's
own weights, and the measured one, both per unit of learning rate, when the matrices that the theorems speak of (v, out,
fc1, fc2) make their first update by SGD or by Adam.
"""

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.experiments.pictures import COLOURS, save_picture
from deepnet.experiments.tables import markdown, number
from deepnet.probes.model_update import ModelUpdate
from deepnet.schemes.base import Architecture, OptimizerFamily
from deepnet.theory.branchnorm_gradient import gradient_terms
from deepnet.theory.live_model import (
    branch_matrices,
    copy_matrices,
    post_norm_sites,
    predicted_update,
)
from deepnet.theory.loss_change import first_update, moved
from deepnet.transformer.models import Transformer
from theory_workload import (
    interval,
    over_seeds,
    save,
    trial,
)

SCHEMES = ("post_ln", "deepnorm", "branchnorm")
DEPTHS: dict[Architecture, tuple[int, ...]] = {
    "encoder_only": (6, 18, 50, 100, 200),
    "encoder_decoder": (6, 18, 50, 100),
}
LEARNING_RATES: dict[OptimizerFamily, float] = {"sgd": 1e-7, "adam": 1e-9}
BRANCHNORM_STEP = 1
"""The first update that moves a branch: at step 0 the factor, the prediction and the movement are all 0."""


def move(
    model: Transformer, inputs: tuple[Any, ...], steps: list[torch.Tensor], lr: float
) -> tuple[float, float]:
    """Return predicted and measured movement of the last stack's output, root mean square per element."""
    matrices = theorem_matrices(model)
    before, last = copy_matrices(model), model.stacks()[-1].name
    probe = ModelUpdate(model, inputs, layers=[last])
    with moved(matrices, steps, lr=lr):
        return predicted_update(model, before), probe.measure()[last].rms


def theorem_matrices(model: Transformer) -> list[torch.Tensor]:
    """Return v and out, fc1 and fc2 of every site."""
    sites = [site for stack in model.stacks() for site in post_norm_sites(stack)]
    return [matrix for site in sites for matrix in branch_matrices(site)]


def measure(
    architecture: Architecture, scheme: str, layers: int, family: OptimizerFamily, seed: int
) -> dict[str, float]:
    """Return the update of one model, per unit of learning rate, and how far it is from first order."""
    asked = trial(architecture, layers, scheme, family=family, seed=seed)
    if scheme == "branchnorm":
        asked.model.advance(BRANCHNORM_STEP)
    matrices, lr = theorem_matrices(asked.model), LEARNING_RATES[family]
    gradients = torch.autograd.grad(asked.loss(), matrices)
    steps = [first_update(w, g, optimizer=family) for w, g in zip(matrices, gradients, strict=True)]
    predicted, measured = move(asked.model, asked.inputs, steps, lr)
    _, at_half = move(asked.model, asked.inputs, steps, lr / 2)
    return {
        "predicted": predicted / lr,
        "measured": measured / lr,
        "ratio": measured / predicted,
        "halving": 2 * at_half / measured,
        **gradient_factors(asked.model, asked.loss),
    }


def gradient_factors(model: Transformer, loss: Any) -> dict[str, float]:
    """Return geometric means over the sites of the factors on the gradient's way back, and first to last."""
    terms = gradient_terms(model, loss)
    return {
        "norm_factor": geometric_mean([term.norm for term in terms]),
        "norm_estimate": geometric_mean([term.norm_estimate for term in terms]),
        "residual_factor": geometric_mean([term.residual for term in terms]),
        "first_to_last_site": terms[0].arriving / terms[-1].arriving,
    }


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def update_table(rows: list[dict[str, Any]]) -> str:
    """Return predicted against measured update."""
    header = ("stacks", "optimiser", "scheme", "layers", "predicted", "measured", "ratio")
    lines = [
        [row["architecture"], row["optimizer"], row["scheme"], depth(row)]
        + [number(row[key]["median"]) for key in ("predicted", "measured")]
        + [interval(row["ratio"])]
        for row in rows
    ]
    return markdown(header, lines)


def factor_table(rows: list[dict[str, Any]]) -> str:
    """Return the factors on the gradient's way back through an encoder."""
    header = ("scheme", "layers", "norm", "sqrt(d) / norm of y", "residual", "first / last site")
    keys = ("norm_factor", "norm_estimate", "residual_factor", "first_to_last_site")
    chosen = [r for r in rows if (r["architecture"], r["optimizer"]) == ("encoder_only", "sgd")]
    return markdown(
        header,
        [
            [row["scheme"], depth(row), *(number(row[key]["median"]) for key in keys)]
            for row in chosen
        ],
    )


def depth(row: dict[str, Any]) -> str:
    """Return the layers as "100" or "100 + 100"."""
    layers = str(row["layers"])
    return f"{layers} + {layers}" if row["architecture"] == "encoder_decoder" else layers


def report(rows: list[dict[str, Any]]) -> str:
    """Return table.md."""
    worst = max(abs(math.log(row["halving"][end])) for row in rows for end in ("low", "high"))
    return "\n\n".join(
        [
            "# The first update: DeepNet's theorems against the model",
            "`python benchmarks/first_update.py`. Root mean square movement of the last stack's output per unit of "
            "learning rate; median over 3 seeds, the ratio (measured / predicted) with its lowest and highest. "
            f"branchnorm at step {BRANCHNORM_STEP} of 4,000. At half the learning rate the movement is half as "
            f"far to within {math.expm1(worst):.1%}.",
            update_table(rows),
            "## The gradient's factors per site",
            "Geometric means over the sites of an encoder: the norm's factor on the gradient, its estimate, the "
            "residual factor; and the gradient's norm after the first site over that after the last.",
            factor_table(rows) + "\n",
        ]
    )


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return the update and the ratio over depth, one row of axes per optimiser."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(len(LEARNING_RATES), 2)
    for (update, ratio), family in zip(grid, LEARNING_RATES, strict=True):
        own = [row for row in rows if row["optimizer"] == family]
        for colour, scheme in zip(COLOURS, SCHEMES, strict=False):
            for architecture, style in (("encoder_only", "-"), ("encoder_decoder", "--")):
                part = [
                    r for r in own if (r["scheme"], r["architecture"]) == (scheme, architecture)
                ]
                draw_line(update, part, "measured", colour, style, f"{scheme}, {architecture}")
                draw_line(ratio, part, "ratio", colour, style, "")
        finish(update, f"{family}: measured update / learning rate")
        finish(ratio, f"{family}: measured / predicted")
    lines, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def draw_line(
    axes: Axes, rows: list[dict[str, Any]], key: str, colour: str, style: str, label: str
) -> None:
    """Draw medians over depth, with bars from lowest to highest."""
    middle = [row[key]["median"] for row in rows]
    bars = [
        [abs(m - row[key][end]) for m, row in zip(middle, rows, strict=True)]
        for end in ("low", "high")
    ]
    layers = [row["layers"] for row in rows]
    axes.errorbar(
        layers, middle, bars, color=colour, linestyle=style, marker="o", markersize=3, label=label
    )


def finish(axes: Axes, title: str) -> None:
    """Set logarithmic axes and the title."""
    axes.set(xscale="log", yscale="log", xlabel="layers per stack")
    axes.set_title(title, loc="left", fontsize=9)
    axes.grid(alpha=0.3)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows: list[dict[str, Any]] = []
    for architecture, depths in DEPTHS.items():
        for family in LEARNING_RATES:
            for scheme in SCHEMES:
                for layers in depths:
                    key = (architecture, scheme, layers, family)
                    found = over_seeds(lambda seed, key=key: measure(*key, seed))
                    names = ("architecture", "scheme", "layers", "optimizer")
                    rows.append(dict(zip(names, key, strict=True)) | found)
                    print(*key, interval(found["ratio"]), flush=True)
    config = {"learning_rates": LEARNING_RATES, "branchnorm_step": BRANCHNORM_STEP}
    folder = save("first_update", config=config, rows=rows, table=report(rows))
    save_picture(draw(rows), folder / "figure.png")


if __name__ == "__main__":
    main()
