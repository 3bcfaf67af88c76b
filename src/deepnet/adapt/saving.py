"""An adopted Hugging Face model read back from the folder that its own `save_pretrained` wrote."""

import importlib
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
from deepnet.rebuild import UNBUILDABLE, Frugal
from deepnet.schemes.catalogue import TrustCode, check_trusted, load_scheme
from deepnet.seal import read_json

_WEIGHTS = "model.safetensors"
_DAMAGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def from_pretrained(path: str | Path, *, trust_code: TrustCode = ()) -> nn.Module:
    """Return the model in a folder written by `model.save_pretrained`, with its scheme, in evaluation mode.

    `trust_code` names the classes "module:Class" that the folder may bring: they are imported, so their code runs.
    Raises CheckpointError where it needs another one, where the folder holds no scheme, or where it is damaged.
    """
    path = Path(path)
    config = _read_config(path)
    record = _record(config, path)
    options = dict(record.scheme)
    name = str(options.pop("name", ""))
    check_trusted(name, trust_code, where=path)
    tensors = _read_tensors(path)
    model = _stock_model(config, path, tensors)
    try:
        scheme = load_scheme(name, options)
        setting = Setting(
            **record.model_dump(include={"optimizer_family", "layers"}), ends=record.ends
        )
        planned = plan_stacks(locate(model), scheme, setting)
        attach(model, scheme, planned, Journal(), keep=record.kept, ends=record.ends)
    except DeepNetError as error:
        raise CheckpointError(f"{path}: {error}") from error
    del model.config.deepnet
    write_record(model, scheme, setting, kept=record.kept, journal=Journal())
    _load(model, tensors, path)
    loaded: nn.Module = model.eval()
    return loaded


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = read_json(path / "config.json")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} has no readable config.json: {error}") from error
    return config


def _record(config: dict[str, Any], path: Path) -> Record:
    if not isinstance(config, dict) or "deepnet" not in config:
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


def _stock_model(config: dict[str, Any], path: Path, tensors: dict[str, Tensor]) -> Any:
    """Return a stock model of the saved class and type, with random weights, about as large as the saved ones."""
    transformers = importlib.import_module("transformers")
    names = config.get("architectures") or []
    if not isinstance(names, list) or len(names) != 1:
        raise CheckpointError(f"{path}: config.json names the classes {names}; expected one")
    kind: Any = getattr(transformers, str(names[0]), None)
    if not _is_model_class(kind, transformers):
        raise CheckpointError(f"{path}: transformers has no model class {names[0]}")
    try:
        with Frugal(tensors):
            model: Any = kind(kind.config_class.from_pretrained(path))
    except (*UNBUILDABLE, CheckpointError) as error:
        raise CheckpointError(f"{path}: no model can be built as it says: {error}") from error
    if (path / "generation_config.json").exists():
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: generation_config.json: {error}") from error
    return model if model.config.dtype is None else model.to(model.config.dtype)


def _is_model_class(kind: object, transformers: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


def _load(model: Any, tensors: dict[str, Tensor], path: Path) -> None:
    """Load the saved tensors; every tensor of the model must be there, tied ones once."""
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
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
    """Return every saved tensor, from one file or from the several that an index names; they lie in the folder."""
    try:
        files = [path / name for name in _weight_files(path)]
        if not all(file.is_file() for file in files):
            raise OSError(
                "a file of the weights is missing, or is not a file; copy or save it again"
            )
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError, *_DAMAGED) as error:
        raise CheckpointError(f"{path / _WEIGHTS}: {error}") from error


def _weight_files(path: Path) -> list[str]:
    index = path / f"{_WEIGHTS}.index.json"
    if not index.exists():
        return [_WEIGHTS]
    names = set(read_json(index)["weight_map"].values())
    if outside := [name for name in names if name != Path(str(name)).name]:
        raise ValueError(f"{index.name} names a file outside the folder: {outside[0]}")
    return sorted(names)


def _tied(tensor: Tensor, found: set[int]) -> bool:
    return id(tensor) in found
