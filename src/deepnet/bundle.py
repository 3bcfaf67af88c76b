"""A bundle: the folder of one model, with all that is needed to use it.

    config.json         format version, shape, scheme, ends, optimiser family, tokenizer hashes, languages, provenance
    model.safetensors   every parameter once, however often it is used, and the buffers that are saved
    tokenizer.model     or source.model and target.model; absent where the model does not read text
    SHA256SUMS          the checksum of each of them; bundles of earlier versions have none

Everything is JSON, safetensors and SentencePiece; nothing is unpickled, and no class is imported but those that the
caller trusts by name. Loading is strict: an unknown key, or a tensor that is missing, unexpected, or of another shape
or type is an error.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from deepnet.config import Section, build
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import CheckpointError, DataError, DeepNetError, suggest
from deepnet.left_open import as_recorded
from deepnet.rebuild import build_for, check_shape
from deepnet.record import atomic_folder, sync_folder, write_json
from deepnet.schemes.base import OptimizerFamily
from deepnet.schemes.catalogue import (
    TrustCode,
    check_trusted,
    describe_scheme,
    is_own,
    load_scheme,
)
from deepnet.seal import find_damage, read_json, seal_folder
from deepnet.tensor_files import read_tensors as read_tensors
from deepnet.tensor_files import write_tensors as write_tensors
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.models import Transformer, TransformerConfig

FORMAT_VERSION = 1
"""Version of the bundle's format; every later version of deepnet reads it."""

_CONFIG_FILE, _TENSOR_FILE = "config.json", "model.safetensors"


class BundleConfig(Section):
    """The content of config.json."""

    format_version: int = FORMAT_VERSION
    """Version of this format."""
    model: TransformerConfig
    """Shape of the model."""
    scheme: dict[str, Any]
    """Name and options of the residual scheme."""
    ends: EndsConfig = EndsConfig()
    """What was chosen of embeddings and vocabulary beside the scheme."""
    optimizer_family: OptimizerFamily = "adam"
    """What the model was trained with, where the scheme's coefficients depend on it."""
    languages: dict[str, Any] | None = None
    """Source and target language, where known."""
    tokenizer: dict[str, str] | None = None
    """The sha256 of the source's and the target's SentencePiece model; null where there is none."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Where the weights come from: recipe, data, updates, scores."""

    @field_validator("model", mode="before")
    @classmethod
    def _as_it_was_meant(cls, given: Any) -> Any:
        """Mean what was meant when it was saved by the keys that it lacks."""
        return as_recorded(TransformerConfig, given) if isinstance(given, dict) else given

    @property
    def scheme_name(self) -> str:
        """The scheme's name, "module:Class" where it is a class of somebody's own."""
        return str(self.scheme.get("name", ""))


@dataclass(frozen=True)
class Bundle:
    """A model with its tokenizers and the record of where it comes from."""

    model: Transformer
    tokenizers: Tokenizers | None
    config: BundleConfig
    path: Path


def save_bundle(
    path: str | Path,
    model: Transformer,
    tokenizers: Tokenizers | None = None,
    *,
    languages: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a bundle, in place of one that is there; a failure leaves the old one as it was.

    Raises CheckpointError where `path` is something else than a bundle, and DeepNetError where the disk refuses or the
    model has no weights yet.
    """
    model.check_made()
    path = Path(path)
    _check_vocabularies(model.config, tokenizers, path)
    if path.exists() and not (path / _CONFIG_FILE).exists() and any(_entries(path)):
        raise CheckpointError(f"{path} exists and is not a bundle; choose another folder")
    config = BundleConfig(
        model=model.config,
        scheme=describe_scheme(model.scheme),
        ends=model.ends,
        optimizer_family=model.optimizer_family,
        languages=None if languages is None else dict(languages),
        tokenizer=_fingerprints(tokenizers),
        training=dict(provenance or {}),
    )
    try:
        _replace(path, model, tokenizers, config)
    except OSError as error:
        raise DeepNetError(
            f"cannot write the bundle {path}: {error.strerror or error}; what was there is unchanged;"
            " make room or choose another folder"
        ) from error


def read_bundle_config(path: str | Path) -> BundleConfig:
    """Return a bundle's config.json; raises CheckpointError where there is none, or it cannot be used."""
    return _read_config(_existing(Path(path)) / _CONFIG_FILE)


def load_bundle(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    trust_code: TrustCode = (),
) -> Bundle:
    """Read a bundle onto `device`, ready to translate (dropout off).

    `trust_code` names the classes "module:Class" that it may bring: they are imported, so their code runs. Raises
    CheckpointError where it needs another one, where there is no bundle, where it is damaged, or where its parts do not
    belong together.
    """
    path = _existing(Path(path))
    config = _read_config(path / _CONFIG_FILE)
    check_trusted(config.scheme_name, trust_code, where=path)
    tensors = read_tensors(path / _TENSOR_FILE)
    tokenizers = _read_tokenizers(path, config)
    _check_vocabularies(config.model, tokenizers, path)
    try:
        model = _build_model(config, tensors)
    except DeepNetError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return Bundle(model.to(device).eval(), tokenizers, config, path)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter once, under its first name, and the buffers that are saved."""
    saved = model.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def load_model_tensors(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    held: Mapping[str, Tensor] | None = None,
    part: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> None:
    """Copy `tensors`, as `model_tensors` gives them, into `model`, or each `part` of them into what is `held` of it.

    Raises CheckpointError that names the first tensor that is missing, unexpected or of another shape or type.
    """
    own = model_tensors(model)
    for name in own:
        if name not in tensors:
            raise CheckpointError(f"the tensor '{name}' is missing")
    for name, tensor in tensors.items():
        if name not in own:
            raise CheckpointError(f"unexpected tensor '{name}'{suggest(name, own)}")
        found, expected = (f"{tuple(t.shape)} {t.dtype}" for t in (tensor, own[name]))
        if found != expected:
            raise CheckpointError(f"the tensor '{name}' is {found}; expected {expected}")
    parameters = dict(model.named_parameters())
    parts = {n: place for n, place in (held or {}).items() if place is not parameters.get(n)}
    with torch.no_grad():
        for name, place in parts.items():
            place.copy_(part(name, tensors[name]))
    whole = {name: tensor for name, tensor in tensors.items() if name not in parts}
    try:
        model.load_state_dict(whole, strict=False)  # of tied names there is but the first
    except (ArithmeticError, RuntimeError, ValueError) as error:
        if "scheme_step" not in tensors:
            raise
        raise CheckpointError(
            f"the tensor 'scheme_step' is {tensors.get('scheme_step')}, which the scheme cannot use: {error}"
        ) from error


def _read_tokenizers(path: Path, config: BundleConfig) -> Tokenizers | None:
    """Return the tokenizers that config.json vouches for; others are not parsed."""
    if config.tokenizer is None:
        return None
    try:
        tokenizers = Tokenizers.load(path, expected=config.tokenizer)
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if _fingerprints(tokenizers) != config.tokenizer:
        raise CheckpointError(f"{path}: the tokenizer is not the one the model was trained with")
    return tokenizers


def _build_model(config: BundleConfig, tensors: Mapping[str, Tensor]) -> Transformer:
    limited = not is_own(config.scheme_name)  # a class of one's own may need whatever it needs
    if limited:
        check_shape(config.model, tensors)
    options = {key: value for key, value in config.scheme.items() if key != "name"}

    def make() -> Transformer:
        return Transformer(
            config.model,
            load_scheme(config.scheme_name, options),
            ends=config.ends,
            optimizer_family=config.optimizer_family,
        )

    model = build_for(tensors, make, limited=limited)
    load_model_tensors(model, tensors)
    return model


def _replace(
    path: Path, model: Transformer, tokenizers: Tokenizers | None, config: BundleConfig
) -> None:
    """Write a new folder, then swap it in; between the two renames the old one is at `_previous`."""
    previous = _previous(path)
    with atomic_folder(path) as folder:
        write_json(folder / _CONFIG_FILE, config.model_dump(mode="json"))
        write_tensors(folder / _TENSOR_FILE, model_tensors(model))
        if tokenizers is not None:
            tokenizers.save(folder)
        seal_folder(folder)
        if path.exists():
            shutil.rmtree(previous, ignore_errors=True)
            os.rename(path, previous)
    sync_folder(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def _existing(path: Path) -> Path:
    """Return the folder to read: `path`, or what a kill in the middle of `save_bundle` left of it."""
    if not path.exists() and _previous(path).exists():
        return _previous(path)
    if not (path / _CONFIG_FILE).exists():
        raise CheckpointError(f"{path} is not a bundle: there is no {_CONFIG_FILE} in it")
    return path


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else [path]


def _read_config(path: Path) -> BundleConfig:
    if damage := find_damage(path):
        raise CheckpointError(damage)
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}); copy or save the bundle again"
        ) from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version!r}; this deepnet reads 1 to {FORMAT_VERSION}:"
            " a larger one needs a newer deepnet, none means that it is not a bundle"
        )
    try:
        return build(BundleConfig, data)
    except DeepNetError as error:
        raise CheckpointError(f"{path}: {'; '.join(str(error).splitlines())}") from error


def _fingerprints(tokenizers: Tokenizers | None) -> dict[str, str] | None:
    if tokenizers is None:
        return None
    return {"source": tokenizers.source.fingerprint, "target": tokenizers.target.fingerprint}


def _check_vocabularies(
    config: TransformerConfig, tokenizers: Tokenizers | None, path: Path
) -> None:
    if tokenizers is None:
        return
    sizes = {"target": config.vocab_size, "source": config.source_vocab_size or config.vocab_size}
    for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
        if tokenizer.vocab_size != sizes[side]:
            raise CheckpointError(
                f"{path}: the {side} tokenizer has {tokenizer.vocab_size} ids, the model"
                f" {sizes[side]}; they do not belong together"
            )
