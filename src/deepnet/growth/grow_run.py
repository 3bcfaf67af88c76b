"""A run's model, or a bundle, as a deeper bundle to train on from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnet.bundle import load_bundle
from deepnet.growth.grow import Method, grow_model
from deepnet.growth.held_out import HeldOutText
from deepnet.growth.relayer import save_relayered
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.preparing import CACHE, Report
from deepnet.schemes.catalogue import TrustCode
from deepnet.transformer.counting import count_parameters


@dataclass(frozen=True, kw_only=True)
class GrownRun:
    """A deeper bundle, and how far its function is from that of the trained model."""

    bundle: Path
    layers: Mapping[str, int]
    """By stack."""
    parameters: int
    jumps: tuple[str, ...]
    """Why the function is not preserved; empty where it is, exactly."""
    loss_before: float | None
    """Of the valid part, in nats per token; None for a bundle that is not in a run folder."""
    loss_after: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**vars(self), "bundle": str(self.bundle), "preserved": not self.jumps}


def grow_run(
    path: str | Path,
    *,
    out: str | Path,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    method: Method = "stack",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> GrownRun:
    """Write a deeper bundle to `out`, from the finished model of a run or from a bundle; how: `grow_model`.

    `deepnet.train(recipe, start_from=out)` goes on with it. `trust_code` names the classes that the run may bring.
    Raises ConfigError where it cannot be grown so, CheckpointError where there is no model.
    """
    bundle = load_bundle(bundle_path(path), trust_code=trust_code)
    grown = grow_model(
        bundle.model, encoder_layers=encoder_layers, decoder_layers=decoder_layers, method=method
    )
    layers: dict[str, int] = {stack.name: len(stack.layers) for stack in grown.model.stacks()}
    save_relayered(bundle, grown.model, Path(out), made={"grown": {"method": method, **layers}})
    text = HeldOutText.of(path, cache=cache, trust_code=trust_code, report=report)
    models = (bundle.model, grown.model)
    before, after = (text.figures(one)["loss"] if text else None for one in models)
    return GrownRun(
        bundle=Path(out),
        layers=layers,
        parameters=count_parameters(grown.model)["total"],
        jumps=grown.jumps,
        loss_before=before,
        loss_after=after,
    )
