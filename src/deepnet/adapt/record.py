"""The record of a scheme in a Hugging Face model's configuration, `config.deepnet`, saved with it as JSON."""

from typing import Any

from torch import nn

from deepnet.adapt.fit import Setting
from deepnet.adapt.journal import Journal
from deepnet.anatomy.base import Sited
from deepnet.anatomy.locate import is_huggingface
from deepnet.config import Section
from deepnet.schemes.base import OptimizerFamily, ResidualScheme
from deepnet.schemes.catalogue import describe_scheme
from deepnet.transformer.ends import EndsConfig

FORMAT_VERSION = 1


class Record(Section):
    """What `from_pretrained` needs to put the scheme on again."""

    format_version: int = FORMAT_VERSION
    """Version of this record."""
    scheme: dict[str, Any]
    """Name and options."""
    optimizer_family: OptimizerFamily = "adam"
    """What the coefficients were derived for."""
    layers: tuple[int, int] | None = None
    """Encoder and decoder layers of the whole, where the model is one stack of it."""
    kept: bool = False
    """Whether trained weights were taken over with their function: the norms' eps then differ."""
    ends: EndsConfig = EndsConfig()
    """What was chosen of the embeddings and the vocabulary projection."""


def write_record(
    model: nn.Module, scheme: ResidualScheme, setting: Setting, *, kept: bool, journal: Journal
) -> None:
    """Write the scheme into the model's configuration, where it has one."""
    if not is_huggingface(model):
        return
    record = Record(
        scheme=describe_scheme(scheme),
        optimizer_family=setting.optimizer_family,
        layers=setting.layers,
        kept=kept,
        ends=setting.ends,
    )
    config: Any = model.config
    journal.add(config, "deepnet", record.model_dump(mode="json", exclude_none=True))
    _declare_shared(model, journal)


def _declare_shared(model: nn.Module, journal: Journal) -> None:
    """Tell Hugging Face's saving which parameters several sites share: it refuses those it was not told of."""
    seen: set[int] = set()
    for owner in model.modules():
        if isinstance(owner, Sited):
            shared = {}
            for name, parameter in owner.sites.named_parameters("sites", remove_duplicate=False):
                if id(parameter) in seen:
                    shared[name] = ""
                seen.add(id(parameter))
            if shared:
                journal.add(owner, "_tied_weights_keys", shared)
