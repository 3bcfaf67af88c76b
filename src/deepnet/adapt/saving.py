"""An adopted Hugging Face model read back from the folder that its own `save_pretrained` wrote."""

import importlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deepnet.adapt.attach import attach
from deepnet.adapt.fit import Setting, plan_stacks
from deepnet.adapt.journal import Journal
from deepnet.adapt.record import FORMAT_VERSION, Record, write_record
from deepnet.anatomy.locate import locate
from deepnet.config import build
from deepnet.errors import CheckpointError, DeepNetError
from deepnet.schemes.catalogue import load_scheme

_WEIGHTS = "model.safetensors"


def from_pretrained(path: str | Path) -> nn.Module:
    """Return the model in a folder written by `model.save_pretrained`, with its scheme, in evaluation mode.

    Raises CheckpointError where the folder holds no scheme, or is damaged.
    """
    path = Path(path)
    config = _read_config(path)
    record = _record(config, path)
    model = _stock_model(config, path)
    options = dict(record.scheme)
    try:
        scheme = load_scheme(str(options.pop("name", "")), options)
        setting = Setting(
            **record.model_dump(include={"optimizer_family", "layers"}), ends=record.ends
        )
        planned = plan_stacks(locate(model), scheme, setting)
        attach(model, scheme, planned, Journal(), keep=record.kept, ends=record.ends)
    except DeepNetError as error:
        raise CheckpointError(f"{path}: {error}") from error
    del model.config.deepnet
    write_record(model, scheme, setting, kept=record.kept, journal=Journal())
    _load(model, path)
    loaded: nn.Module = model.eval()
    return loaded


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} has no readable config.json: {error}") from error
    return config


def _record(config: dict[str, Any], path: Path) -> Record:
    if "deepnet" not in config:
        raise CheckpointError(
            f"{path}: its config.json has no 'deepnet' part; a stock model is read with its own class and "
            "given a scheme by apply_scheme, a bundle is read with load_bundle"
        )
    try:
        record = build(Record, config["deepnet"])
    except DeepNetError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if record.format_version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: its scheme has format version {record.format_version}, this deepnet reads up to "
            f"{FORMAT_VERSION}; use a newer deepnet"
        )
    return record


def _stock_model(config: dict[str, Any], path: Path) -> Any:
    """Return a stock model of the saved class and type, with random weights."""
    transformers = importlib.import_module("transformers")
    names = config.get("architectures") or []
    if len(names) != 1:
        raise CheckpointError(f"{path}: config.json names the classes {names}; expected one")
    try:
        kind = getattr(transformers, names[0])
    except AttributeError as error:
        raise CheckpointError(f"{path}: transformers has no class {names[0]}") from error
    model = kind(kind.config_class.from_pretrained(path))
    if (path / "generation_config.json").exists():
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: generation_config.json: {error}") from error
    return model if model.config.dtype is None else model.to(model.config.dtype)


def _load(model: Any, path: Path) -> None:
    """Load the saved tensors; every tensor of the model must be there, tied ones once."""
    try:
        tensors = _read_tensors(path)
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path / _WEIGHTS}: {error}") from error
    own = model.state_dict(keep_vars=True)
    found = {id(own[name]) for name in tensors if name in own}
    never_saved = set(model._keys_to_ignore_on_save or ())
    lost = [name for name in missing if not _tied(own[name], found) and name not in never_saved]
    if lost or unexpected:
        raise CheckpointError(
            f"{path / _WEIGHTS} does not belong to this model: missing {lost[:3]}, unexpected {unexpected[:3]}"
        )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Return every saved tensor, from one file or from the several that an index names."""
    index, names = path / f"{_WEIGHTS}.index.json", {_WEIGHTS}
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return {k: tensor for name in sorted(names) for k, tensor in load_file(path / name).items()}


def _tied(tensor: Tensor, found: set[int]) -> bool:
    return id(tensor) in found
