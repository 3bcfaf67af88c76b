"""Train, diagnose, adopt and deploy Transformers of any depth.

Importing deepnet imports nothing else; each name below is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from deepnet.version import __version__

if TYPE_CHECKING:
    from deepnet.adapt.apply import apply_scheme as apply_scheme
    from deepnet.adapt.groups import parameter_groups as parameter_groups
    from deepnet.adapt.saving import from_pretrained as from_pretrained
    from deepnet.audit.examine import audit as audit
    from deepnet.blocks.draws import initialize as initialize
    from deepnet.blocks.named import BranchNorm as BranchNorm
    from deepnet.blocks.named import DeepNorm as DeepNorm
    from deepnet.blocks.named import PostNorm as PostNorm
    from deepnet.blocks.named import PreNorm as PreNorm
    from deepnet.blocks.sites import ResidualSites as ResidualSites
    from deepnet.blocks.sites import residual_sites as residual_sites
    from deepnet.bundle import load_bundle as load_bundle
    from deepnet.decoding.interface import DecodingConfig as DecodingConfig
    from deepnet.decoding.translate import translate as translate
    from deepnet.doctor.of_model import doctor as doctor
    from deepnet.folding.fold import fold as fold
    from deepnet.growth.scaling_law import scaling_law as scaling_law
    from deepnet.pipeline.entry import train as train
    from deepnet.pipeline.entry import train_model as train_model
    from deepnet.pipeline.recipe import load_recipe as load_recipe
    from deepnet.pipeline.shipped import list_recipes as list_recipes
    from deepnet.probes.attention_entropy import AttentionEntropy as AttentionEntropy
    from deepnet.probes.branch_ratio import BranchRatio as BranchRatio
    from deepnet.probes.gradient_norm import GradientNorm as GradientNorm
    from deepnet.probes.logit_scale import LogitScale as LogitScale
    from deepnet.probes.model_update import ModelUpdate as ModelUpdate
    from deepnet.probes.norm_input import NormInput as NormInput
    from deepnet.probes.similarity import Similarity as Similarity
    from deepnet.probes.sparsity import Sparsity as Sparsity
    from deepnet.probes.token_mean_energy import TokenMeanEnergy as TokenMeanEnergy
    from deepnet.probes.update_ratio import UpdateRatio as UpdateRatio
    from deepnet.report.write import write_report as write_report
    from deepnet.schemes.catalogue import list_schemes as list_schemes
    from deepnet.schemes.catalogue import load_scheme as load_scheme
    from deepnet.schemes.coefficients import coefficients as coefficients
    from deepnet.transformer.ends import EndsConfig as EndsConfig
    from deepnet.transformer.models import Transformer as Transformer
    from deepnet.transformer.models import TransformerConfig as TransformerConfig

_HOMES = {
    "AttentionEntropy": "deepnet.probes.attention_entropy",
    "BranchNorm": "deepnet.blocks.named",
    "BranchRatio": "deepnet.probes.branch_ratio",
    "DecodingConfig": "deepnet.decoding.interface",
    "DeepNorm": "deepnet.blocks.named",
    "EndsConfig": "deepnet.transformer.ends",
    "GradientNorm": "deepnet.probes.gradient_norm",
    "LogitScale": "deepnet.probes.logit_scale",
    "ModelUpdate": "deepnet.probes.model_update",
    "NormInput": "deepnet.probes.norm_input",
    "PostNorm": "deepnet.blocks.named",
    "PreNorm": "deepnet.blocks.named",
    "ResidualSites": "deepnet.blocks.sites",
    "Similarity": "deepnet.probes.similarity",
    "Sparsity": "deepnet.probes.sparsity",
    "TokenMeanEnergy": "deepnet.probes.token_mean_energy",
    "Transformer": "deepnet.transformer.models",
    "TransformerConfig": "deepnet.transformer.models",
    "UpdateRatio": "deepnet.probes.update_ratio",
    "apply_scheme": "deepnet.adapt.apply",
    "audit": "deepnet.audit",
    "coefficients": "deepnet.schemes.coefficients",
    "doctor": "deepnet.doctor",
    "fold": "deepnet.folding.fold",
    "from_pretrained": "deepnet.adapt.saving",
    "initialize": "deepnet.blocks.draws",
    "list_recipes": "deepnet.pipeline.shipped",
    "list_schemes": "deepnet.schemes.catalogue",
    "load_bundle": "deepnet.bundle",
    "load_recipe": "deepnet.pipeline.recipe",
    "load_scheme": "deepnet.schemes.catalogue",
    "parameter_groups": "deepnet.adapt.groups",
    "residual_sites": "deepnet.blocks.sites",
    "scaling_law": "deepnet.growth.scaling_law",
    "train": "deepnet.pipeline.entry",
    "train_model": "deepnet.pipeline.entry",
    "translate": "deepnet.decoding.translate",
    "write_report": "deepnet.report.write",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepnet' has no attribute '{name}'")
    return vars(importlib.import_module(_HOMES[name]))[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
