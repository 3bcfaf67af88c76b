"""A finished model and how it translates, from a run folder or a bundle."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from deepnet.bundle import Bundle, load_bundle
from deepnet.config import build, override_section
from deepnet.decoding.interface import DecodingConfig, device_of
from deepnet.decoding.translate import Translator
from deepnet.errors import CheckpointError, ConfigError
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode, check_trusted
from deepnet.training.config import PrecisionName
from deepnet.training.engine.precision import Precision, finished_precision, resolve_precision

_MOST = {
    "beam_size": 1000,
    "n_best": 1000,
    "max_length_ratio": 100.0,
    "max_length_constant": 10_000,
    "max_tokens": 1_000_000,
}
"""What a bundle's record may ask of a search; more has to be asked by whoever translates."""


def bundle_path(path: str | Path) -> Path:
    """Return the bundle of a run folder, or the bundle itself.

    Raises CheckpointError where `path` is neither, or a run without a bundle.
    """
    path = Path(path)
    if (path / "config.json").exists():
        return path
    if not RunFolder(path).recipe_path.exists():
        what = "does not exist" if not path.exists() else "is neither a run folder nor a bundle"
        raise CheckpointError(f"{path} {what}; give the folder that 'deepnet train --out' wrote")
    if not RunFolder(path).bundle.exists():
        raise CheckpointError(
            f"the run {path} is not finished: it has no bundle yet. Go on with 'deepnet train {path} "
            f"--out {path} --resume', or make a bundle with 'deepnet average {path} --last 1'"
        )
    return RunFolder(path).bundle


def open_models(
    paths: Sequence[str | Path],
    *,
    to: str = "",
    device: str | torch.device = "cpu",
    precision: PrecisionName = "auto",
    trust_code: TrustCode = (),
) -> tuple[Translator, Bundle]:
    """Return the translator of a run or bundle, or of the ensemble of several, and the first one's bundle.

    `to` is the language to translate into, of models of several. `precision` is by default that of the first one's
    run. `trust_code` names the classes that they may bring. Raises CheckpointError where one cannot be read, and
    ConfigError where they do not go together, none is given or the device has not the precision.
    """
    bundles = open_bundles(paths, device=device, trust_code=trust_code)
    autocast = bundle_precision(bundles[0], precision).autocast
    return Translator.of(*bundles, to=to, autocast=autocast), bundles[0]


def open_bundles(
    paths: Sequence[str | Path],
    *,
    device: str | torch.device = "cpu",
    trust_code: TrustCode = (),
) -> list[Bundle]:
    """Return the bundles of runs or bundles; raises as `load_bundle` does, and ConfigError where none is given."""
    if not paths:
        raise ConfigError("no model is given; name a run folder or a bundle")
    return [load_bundle(bundle_path(path), device, trust_code=trust_code) for path in paths]


def bundle_precision(bundle: Bundle, asked: PrecisionName = "auto") -> Precision:
    """Return the precision in which a bundle's model runs where it is: by default that of its run, if that pays there.

    A bundle that says nothing of it is from before runs were decoded in their own precision, and runs in float32.
    """
    device, width = device_of(bundle.model), bundle.model.config.d_model
    if asked != "auto":
        return resolve_precision(asked, device=device, width=width)
    recorded = str(bundle.config.training.get("precision", "fp32"))
    return finished_precision(recorded, device=device, width=width)


def recorded_recipe(path: str | Path, *, trust_code: TrustCode = ()) -> Recipe:
    """Return the recipe of a run that is looked at, not trained: the run may be anybody's.

    Raises CheckpointError where its scheme is a class of somebody's own that `trust_code` does not name.
    """
    run = RunFolder.open(path)
    recorded = run.read_recipe().get("recipe")
    scheme = recorded.get("scheme") if isinstance(recorded, dict) else None
    name = scheme.get("name", "") if isinstance(scheme, dict) else ""
    check_trusted(str(name), trust_code, where=run.recipe_path)
    return load_recipe(path)


def decoding_settings(bundle: Bundle, overrides: Iterable[str] = ()) -> DecodingConfig:
    """Return how the bundle's recipe translates, changed by `decoding.key=value` overrides.

    Another `decoding.method` than the recipe's starts from that method's defaults. Raises ConfigError for a wrong key.
    """
    recorded = _recorded_decoding(bundle)
    changes = override_section("decoding", {}, overrides)
    if changes.get("method", recorded.get("method")) != recorded.get("method"):
        recorded = {}
    beyond = [
        key for key, most in _MOST.items() if key not in changes and recorded.get(key, 0) > most
    ]
    if beyond:
        raise CheckpointError(
            f"{bundle.path} asks for decoding.{beyond[0]} = {recorded[beyond[0]]}, more than {_MOST[beyond[0]]:,}; if "
            f"that is what you want, say it yourself: decoding.{beyond[0]}=N"
        )
    return build(DecodingConfig, {**recorded, **changes}, where="decoding")


def _recorded_decoding(bundle: Bundle) -> dict[str, Any]:
    recorded = bundle.config.training.get("decoding", {})
    try:
        return build(DecodingConfig, recorded, where="decoding").model_dump(include=set(recorded))
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{bundle.path}: its recorded decoding cannot be used: {error}"
        ) from error
