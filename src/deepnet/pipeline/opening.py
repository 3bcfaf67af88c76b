"""A finished model and how it translates, from a run folder or a bundle."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from deepnet.bundle import Bundle, load_bundle
from deepnet.config import build, override_section
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator
from deepnet.errors import CheckpointError, ConfigError
from deepnet.record import RunFolder


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
    paths: Sequence[str | Path], *, device: str | torch.device = "cpu"
) -> tuple[Translator, Bundle]:
    """Return the translator of a run or bundle, or of the ensemble of several, and the first one's bundle.

    Raises CheckpointError where one cannot be read, and ConfigError where they do not go together or none is given.
    """
    if not paths:
        raise ConfigError("no model is given; name a run folder or a bundle")
    bundles = [load_bundle(bundle_path(path), device) for path in paths]
    return Translator.of(*bundles), bundles[0]


def decoding_settings(bundle: Bundle, overrides: Iterable[str] = ()) -> DecodingConfig:
    """Return how the bundle's recipe translates, changed by `decoding.key=value` overrides.

    Another `decoding.method` than the recipe's starts from that method's defaults. Raises ConfigError for a wrong key.
    """
    recorded = dict(bundle.config.training.get("decoding", {}))
    changes = override_section("decoding", {}, overrides)
    if changes.get("method", recorded.get("method")) != recorded.get("method"):
        recorded = {}
    return build(DecodingConfig, {**recorded, **changes}, where="decoding")
