"""The essay's claim: with its coefficients the loss's first change does not depend on depth.

python benchmarks/loss_change.py

Writes results/loss_change: the change of the loss in the first update by SGD, Adam and LAMB, predicted to first order
and measured, per unit of learning rate, for decoder-only models of 6 to 200 layers: of the branches' matrices alone, of
which the essay speaks, of the sites' norms and biases, and of every parameter. Beside it what the derivation assumes:
small gradients of q and k, a network near the identity.
"""

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.experiments.pictures import COLOURS, save_picture
from deepnet.experiments.tables import markdown, number
from deepnet.schemes.base import OptimizerFamily
from deepnet.theory.identity import identity_distance
from deepnet.theory.loss_change import loss_change
from deepnet.theory.magnitude import role_magnitudes
from deepnet.transformer.models import Transformer
from theory_workload import (
    Trial,
    interval,
    over_seeds,
    save,
    trial,
)

DEPTHS = (6, 18, 50, 100, 200)
SCHEMES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "post_ln": ("post_ln", None),
    "deepnorm, paper": ("deepnorm", None),
    "deepnorm, essay": ("deepnorm", {"convention": "essay"}),
}
LEARNING_RATES: dict[OptimizerFamily, float] = {"sgd": 1e-8, "adam": 1e-10, "lamb": 1e-9}
SCOPES = {
    "matrices": "the branches' matrices alone",
    "small": "the sites' norms and biases alone",
    "all": "every parameter",
}


def scopes(model: Transformer) -> dict[str, list[torch.Tensor]]:
    """Return q, k, v, out, fc1 and fc2 of every site, the sites' other parameters, and all there are."""
    sites = model.sites()
    matrices = [owner.weight for site in sites for owner in site.branch.roles().values()]
    known = {id(weight) for weight in matrices}
    small = [p for site in sites for p in site.parameters() if id(p) not in known]
    return {"matrices": matrices, "small": small, "all": list(model.parameters())}


def measure(family: OptimizerFamily, scheme: str, layers: int, seed: int) -> dict[str, float]:
    """Return the loss's change of one model in every scope, and what the essay assumes of it."""
    asked = trial("decoder_only", layers, *SCHEMES[scheme], family=family, seed=seed)
    lr = LEARNING_RATES[family]
    found: dict[str, float] = {}
    for name, weights in scopes(asked.model).items():
        change = loss_change(asked.loss, weights, optimizer=family, lr=lr)
        found |= {
            f"{name}_predicted": -change.predicted / lr,
            f"{name}_measured": -change.measured / lr,
            f"{name}_agreement": change.measured / change.predicted,
            f"{name}_halving": change.halving,
        }
    return found | assumptions(asked)


def assumptions(asked: Trial) -> dict[str, float]:
    """Return how small the gradients of q and k are beside those of v and out, and how far the identity is."""
    roles = {m.role: m for m in role_magnitudes(asked.model, asked.loss)}
    small, large = (
        math.hypot(roles[a].gradient, roles[b].gradient) for a, b in (("q", "k"), ("v", "out"))
    )
    identity = identity_distance(asked.model.stacks()[0], asked.loss)
    return {
        "qk_over_vo_gradient": small / large,
        "branch_share": sum(identity.shares) / len(identity.shares),
        "distance_from_identity": identity.distance,
    }


def change_table(rows: list[dict[str, Any]], scope: str) -> str:
    """Return the measured decrease of the loss over depth, its growth, and measured over predicted."""
    header = ["optimiser", "scheme", *map(str, DEPTHS), "at 200 / at 6", "measured / predicted"]
    lines = []
    for family in LEARNING_RATES:
        for scheme in SCHEMES:
            own = [r for r in rows if (r["optimizer"], r["scheme"]) == (family, scheme)]
            measured = [row[f"{scope}_measured"] for row in own]
            growth = measured[-1]["median"] / measured[0]["median"]
            low = min(row[f"{scope}_agreement"]["low"] for row in own)
            high = max(row[f"{scope}_agreement"]["high"] for row in own)
            ends = f"{low:.3f} to {high:.3f}"
            lines.append([family, scheme, *map(interval, measured), number(growth), ends])
    return markdown(header, lines)


def assumption_table(rows: list[dict[str, Any]]) -> str:
    """Return what the essay assumes, over depth; only its own coefficients depend on the optimiser."""
    header = [
        "scheme",
        "layers",
        "grad q,k / grad v,out",
        "branch / skip",
        "distance from identity",
    ]
    keys = ("qk_over_vo_gradient", "branch_share", "distance_from_identity")
    lines = []
    for row in rows:
        own = row["scheme"].endswith("essay")
        if own or row["optimizer"] == "sgd":
            name = f"{row['scheme']} for {row['optimizer']}" if own else row["scheme"]
            lines.append([name, str(row["layers"]), *(number(row[key]["median"]) for key in keys)])
    return markdown(header, lines)


def report(rows: list[dict[str, Any]]) -> str:
    """Return table.md."""
    parts = [
        "# The loss's change in the first update",
        "`python benchmarks/loss_change.py`. Decrease of the loss per unit of learning rate, decoder-only, by "
        "number of layers: median [lowest, highest] of 3 seeds.",
    ]
    for scope, words in SCOPES.items():
        parts += [f"## Updating {words}", first_order(rows, scope), change_table(rows, scope)]
    return "\n\n".join([*parts, "## What the derivation assumes", assumption_table(rows)]) + "\n"


def first_order(rows: list[dict[str, Any]], scope: str) -> str:
    """Return how far from first order the learning rates are."""
    halvings = [row[f"{scope}_halving"][end] for row in rows for end in ("low", "high")]
    worst = max(abs(halving - 1) for halving in halvings)
    return f"At half the learning rate the loss changes half as much to within {100 * worst:.1g}%."


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return the decrease over depth, one axes per optimiser."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, family in zip(figure.subplots(1, 3), LEARNING_RATES, strict=True):
        for colour, scheme in zip(COLOURS, SCHEMES, strict=False):
            own = [r for r in rows if (r["optimizer"], r["scheme"]) == (family, scheme)]
            draw_line(axes, own, "matrices_measured", colour, "-", scheme)
            draw_line(axes, own, "all_measured", colour, ":", f"{scheme}, every parameter")
        axes.set(xscale="log", yscale="log", xlabel="layers")
        axes.set_title(
            f"{family}: first decrease of the loss / learning rate", loc="left", fontsize=9
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6, frameon=False)
    return figure


def draw_line(
    axes: Axes, rows: list[dict[str, Any]], key: str, colour: str, style: str, label: str
) -> None:
    """Draw medians over depth, the seeds' range shaded."""
    layers = [row["layers"] for row in rows]
    low, middle, high = ([row[key][which] for row in rows] for which in ("low", "median", "high"))
    axes.fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(layers, middle, color=colour, linestyle=style, marker="o", markersize=3, label=label)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows: list[dict[str, Any]] = []
    for family in LEARNING_RATES:
        for scheme in SCHEMES:
            for layers in DEPTHS:
                key = (family, scheme, layers)
                found = over_seeds(lambda seed, key=key: measure(*key, seed))
                rows.append(dict(zip(("optimizer", "scheme", "layers"), key, strict=True)) | found)
                print(
                    *key,
                    interval(found["matrices_measured"]),
                    interval(found["all_measured"]),
                    interval(found["matrices_halving"]),
                    interval(found["all_halving"]),
                    flush=True,
                )
    folder = save(
        "loss_change", config={"learning_rates": LEARNING_RATES}, rows=rows, table=report(rows)
    )
    save_picture(draw(rows), folder / "figure.png")


if __name__ == "__main__":
    main()
