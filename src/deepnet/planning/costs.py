"""What a model costs to train under given conditions, found without memory for it: all but the time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deepnet.data.objectives import Batch
from deepnet.planning.files import checkpoint_files
from deepnet.planning.memory import MemoryPlan, plan_memory
from deepnet.planning.optimizer_bytes import optimizer_tensors
from deepnet.planning.rehearsal import Conditions, Rehearsal, rehearse, without_memory
from deepnet.transformer.counting import parameters_by_role
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Multiplications and additions of the matrix products that run for one token of source or target, padding too."""

    forward: float
    backward: float
    """With what is computed again, where training.recompute says so."""
    attention: float
    """Of both, the products of queries, keys and values: they grow with the sentence length."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a model has, computes, holds and leaves on disk."""

    parameters: Mapping[str, Mapping[str, int]]
    """By stack and role; "embeddings" are what the stacks share."""
    operations: Operations
    memory: MemoryPlan
    checkpoint: Mapping[str, int]
    """Bytes of each file of tensors."""


def find_costs(
    build: Callable[[], Transformer],
    batches: Sequence[Batch],
    *,
    conditions: Conditions,
    process: int = 0,
) -> Costs:
    """Return the costs of the model that `build` makes, on the one of these micro-batches that needs most.

    `process` are the bytes that this process held before. Raises PlanError where the model cannot run on tensors
    without numbers.
    """
    with without_memory(conditions.device) as mode:
        model = build()
        rehearsals = [rehearse(model, one, conditions=conditions, mode=mode) for one in batches]
        parameters = dict(model.named_parameters())
        trained = {name: parameters[name] for name in rehearsals[0].trained}
        matrices = [name for name, _, policy in parameter_policies(model) if policy.depth]
    optimizer = optimizer_tensors(conditions.optimizer, trained, matrices=matrices)
    averages = conditions.training.ema_decay > 0
    return Costs(
        parameters=parameters_by_role(model),
        operations=_operations(rehearsals[0], batches[0].num_padded_tokens),
        memory=plan_memory(
            max(rehearsals, key=lambda one: sum(one.most.values())),
            parameters=parameters,
            matrices=matrices,
            optimizer=optimizer,
            conditions=conditions,
            process=process,
        ),
        checkpoint=checkpoint_files(model, optimizer, averages=averages),
    )


def _operations(rehearsal: Rehearsal, num_tokens: int) -> Operations:
    return Operations(
        forward=rehearsal.forward_flops / num_tokens,
        backward=rehearsal.backward_flops / num_tokens,
        attention=rehearsal.attention_flops / num_tokens,
    )
