"""Whether a recipe's run will train: a proxy of its model trains for a few hundred updates on its own text."""

from pathlib import Path

import torch
from torch import Tensor

from deepnet.data.prepare import PreparedData
from deepnet.doctor.beside import against_theory, first_weights
from deepnet.doctor.case import SENTENCES, Case, make_case, prepared_model, settled
from deepnet.doctor.diagnosis import Diagnosis, Evidence, diagnose
from deepnet.doctor.frequencies import frequency_loss
from deepnet.doctor.risk import shipped_weights
from deepnet.doctor.signs import read_signs
from deepnet.doctor.trial import STEPS, refuse_too_few
from deepnet.pipeline.measuring import make_recorder, probe_batch
from deepnet.pipeline.preparing import CACHE, Report, build_model, prepare_data, sized_model
from deepnet.pipeline.recipe import Recipe
from deepnet.planning.machine import memory_bytes
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import token_loss

_CPU = torch.device("cpu")
_FLOAT32 = Precision("fp32", "cpu")


def examine_recipe(
    recipe: Recipe, *, steps: int = STEPS, cache: Path = CACHE, report: Report | None = None
) -> Diagnosis:
    """Return whether a recipe's run will train, from a proxy's updates on its own text, on the CPU in float32.

    Prepares the text, and writes nothing else. Raises DeepNetError where a run would refuse the recipe or its text.
    """
    refuse_too_few(steps)
    data = prepare_data(recipe, cache=cache, report=report)
    given = settled(recipe, data, report)
    case = make_case(recipe, data, steps=steps)
    model = case.model()
    trial = case.train(model, make_recorder(model, case.looked_at, precision=_FLOAT32))
    return diagnose(
        read_signs(trial, frequency_loss=_frequency_loss(case)),
        weights=shipped_weights(),
        beside=[*against_theory(trial.readings), *_first_weights(given, case)],
        trial=case.described(),
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
    )


def _first_weights(given: Recipe, case: Case) -> list[Evidence]:
    """Return what the given model is at its first weights, or its proxy where the memory would not hold it."""
    whose, recipe = "the model", given
    if not _is_held(given, case.data):
        whose, recipe = "its proxy", case.recipe
    model = prepared_model(recipe, case.data)
    batch = probe_batch(recipe, case.data, sentences=SENTENCES)
    recorder = make_recorder(model, batch, precision=_FLOAT32)
    loss = token_loss(label_smoothing=case.smoothing)
    model.eval()
    return first_weights(model, recorder, lambda m: loss(m, batch) / batch.num_tokens, whose=whose)


def _is_held(recipe: Recipe, data: PreparedData) -> bool:
    """Return whether half of the machine's memory holds the weights, their gradients and as much again."""
    with torch.device("meta"):
        model = build_model(recipe, data.tokenizers)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return 3 * size <= memory_bytes(_CPU) / 2


def _frequency_loss(case: Case) -> float:
    targets: list[Tensor] = [batch.target_out for update in case.text for batch in update.batches]
    size = sized_model(case.recipe.model, case.data.tokenizers).vocab_size
    return frequency_loss(targets, num_ids=size - 1, label_smoothing=case.smoothing)
