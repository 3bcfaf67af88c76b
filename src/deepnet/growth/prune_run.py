"""A run's model with fewer layers, as many as are asked for: what each is worth, and one of them as a bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from deepnet.bundle import load_bundle
from deepnet.drawing import COLOURS, save_picture
from deepnet.errors import ConfigError
from deepnet.growth.held_out import HeldOutText
from deepnet.growth.prune import LayerPlace, layer_similarities, most_similar, prune_model
from deepnet.growth.relayer import save_relayered
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.preparing import CACHE, Report
from deepnet.schemes.catalogue import TrustCode
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.models import Transformer

SENTENCES = 32
"""Sentences of the valid part that similarities are measured on."""


@dataclass(frozen=True, kw_only=True)
class KeptLayers:
    """What a model is worth with so many of its layers."""

    layers: int
    """Of all stacks."""
    dropped: tuple[LayerPlace, ...]
    """The most similar first."""
    parameters: int
    loss: float
    """Of the valid part, in nats per token."""
    bleu: float | None
    """Of its translations, None where that was not asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**vars(self), "dropped": [str(place) for place in self.dropped]}


@dataclass(frozen=True, kw_only=True)
class PrunedRun:
    """The whole model first, then with fewer and fewer layers."""

    rows: tuple[KeptLayers, ...]
    similarities: dict[str, float]
    """By layer, "encoder.2"."""
    bundle: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "similarities": self.similarities,
            "bundle": None if self.bundle is None else str(self.bundle),
        }


def prune_run(
    path: str | Path,
    *,
    layers_kept: Sequence[int],
    out: str | Path | None = None,
    picture: str | Path | None = None,
    bleu: bool = False,
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> PrunedRun:
    """Tell what a run's model is worth with each number of layers; with one number, write the bundle `out`.

    `picture` is a PNG of loss, and of BLEU where that is asked for, against the layers kept. `trust_code` names the
    classes that the run may bring. Raises ConfigError where the model cannot have so few layers, or where there is no
    text to measure on; nothing is written then.
    """
    _check(layers_kept, out)
    text = HeldOutText.of(path, cache=cache, trust_code=trust_code, report=report)
    if text is None:
        raise ConfigError(
            f"{path} is a bundle by itself, and layers are compared on the text of a run; give the run folder"
        )
    if bleu and not text.recipe.translates:
        raise ConfigError(
            f"the model of {path} translates nothing, so that it has no BLEU; leave out --bleu"
        )
    bundle = load_bundle(bundle_path(path), trust_code=trust_code)
    similar = layer_similarities(bundle.model, text.arguments(sentences=SENTENCES))
    numbers = sorted({*layers_kept}, reverse=True)
    dropped = [most_similar(bundle.model, similar, kept=number) for number in numbers]
    rows = [_row(text, bundle.model, [], bleu=bleu)]
    for number, places in zip(numbers, dropped, strict=True):
        model = prune_model(bundle.model, places)
        rows.append(_row(text, model, places, bleu=bleu))
        if out is not None:
            made = {"layers": number, "dropped": [str(place) for place in places]}
            save_relayered(bundle, model, Path(out), made={"pruned": made})
    if picture is not None:
        _draw(rows, Path(picture))
    return PrunedRun(
        rows=tuple(rows),
        similarities={str(place): value for place, value in similar.items()},
        bundle=None if out is None else Path(out),
    )


def _check(layers_kept: Sequence[int], out: str | Path | None) -> None:
    if not layers_kept:
        raise ConfigError("layers_kept names no number; give one or several, such as 12 or 18,12,6")
    if out is not None and len({*layers_kept}) > 1:
        raise ConfigError(
            f"{out} can hold one model, and layers_kept names {len({*layers_kept})}; leave out --out to compare them, "
            "or give the one to write"
        )


def _row(
    text: HeldOutText, model: Transformer, dropped: Sequence[LayerPlace], *, bleu: bool
) -> KeptLayers:
    figures = text.figures(model, bleu=bleu)
    return KeptLayers(
        layers=sum(len(stack.layers) for stack in model.stacks()),
        dropped=tuple(dropped),
        parameters=count_parameters(model)["total"],
        loss=figures["loss"],
        bleu=figures.get("bleu"),
    )


def _draw(rows: Sequence[KeptLayers], path: Path) -> None:
    """Draw loss and, where it was measured, BLEU, a panel each."""
    losses = [row.loss for row in rows]
    scores = [row.bleu for row in rows if row.bleu is not None]
    panels = {"loss, nats per token": losses} | ({"BLEU": scores} if scores else {})
    figure = Figure(figsize=(5.0 * len(panels), 3.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for one, colour, (name, values) in zip(axes, COLOURS, panels.items(), strict=False):
        one.plot([row.layers for row in rows], values, "o-", color=colour)
        one.set(xlabel="layers kept", ylabel=f"{name}, valid part")
        one.grid(alpha=0.3)
    save_picture(figure, path)
