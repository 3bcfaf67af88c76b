"""A run that starts from the weights of another: their vocabulary, and the same function of them."""

from pathlib import Path
from typing import Any

from deepnet.bundle import load_bundle, load_model_tensors, model_tensors, read_bundle_config
from deepnet.config import build
from deepnet.data.tokenizer import MODEL_FIELDS, TokenizerConfig, model_files
from deepnet.errors import ConfigError
from deepnet.left_open import completed_by
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.recipe import Recipe
from deepnet.schemes.base import Constant
from deepnet.schemes.catalogue import TrustCode, check_trusted, describe_scheme
from deepnet.training.checkpoint.resume import list_changes
from deepnet.transformer.models import Transformer


def with_vocabulary_of(recipe: Recipe, start_from: str | Path, trust_code: TrustCode) -> Recipe:
    """Return the recipe with the vocabulary of a bundle: its weights mean nothing under another.

    What it leaves open of the model's shape is the bundle's, too. Raises CheckpointError where
    the bundle needs code that is not trusted.
    """
    folder = bundle_path(start_from)
    config = read_bundle_config(folder)
    check_trusted(config.scheme_name, trust_code, where=folder)
    files = map(str, model_files(folder))
    given = dict(zip(MODEL_FIELDS, files, strict=False))  # one of them where both sides share it
    tokenizer = build(TokenizerConfig, given, where="tokenizer")
    model = completed_by(recipe.model, config.model)
    return recipe.model_copy(update={"tokenizer": tokenizer, "model": model})


def take_weights(model: Transformer, start_from: str | Path, trust_code: TrustCode) -> None:
    """Give `model` the weights of a run or bundle that computes the same function, to fine-tune them.

    A scheduled scale goes on where it was: the model counts the updates of its whole life. Raises ConfigError where the
    functions differ, CheckpointError where the weights cannot be read.
    """
    given = load_bundle(bundle_path(start_from), trust_code=trust_code).model
    changes = list_changes(_function(given), _function(model))
    if changes:
        raise ConfigError(
            f"the weights of {start_from} are those of another function: {'; '.join(changes)}; "
            "set the recipe's [model], [scheme] and [ends] to what they were"
        )
    load_model_tensors(model, model_tensors(given))


def _function(model: Transformer) -> dict[str, Any]:
    """Return what decides the function that a model's weights compute."""
    shape = model.config.model_dump(exclude={"dropout", "attention_dropout", "activation_dropout"})
    shape["decoder_start"] = "eos" if model.config.starts_from_eos else "padding"
    if model.max_positions is None:
        del shape["max_positions"]
    plans = [plan for stack in model.stacks() for _, plan in stack.plan.sites]
    alphas = {
        str(n): plan.skip.value for n, plan in enumerate(plans) if isinstance(plan.skip, Constant)
    }
    rows = {
        stack.name: "unit" if stack.plan.ends.unit_rows else "plain" for stack in model.stacks()
    }
    scheme = {**describe_scheme(model.scheme), "skip": alphas}
    return {"model": shape, "scheme": scheme, "ends": {"rows": rows}}
