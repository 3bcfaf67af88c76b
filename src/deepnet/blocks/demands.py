"""What a scheme asks of a model beyond its residual sites: of its branches, its ends and its loop."""

from collections.abc import Iterator
from typing import Any

from deepnet.schemes.base import (
    ONE,
    Ends,
    Policy,
    ResidualScheme,
    Scheduled,
    SitePlan,
    StackPlan,
)

NO_BIASES = "no biases"


def demands(scheme: ResidualScheme, plan: StackPlan) -> list[str]:
    """Return what else the model or its loop has to do for `scheme` to be what its source says."""
    found = [*_of_ends(plan.ends), *_of_scheme(scheme, plan)]
    for site, site_plan in plan.sites:
        found += [f"{what} ({site.kind})" for what in branch_demands(site_plan)]
    return list(dict.fromkeys(found))


def branch_demands(plan: SitePlan) -> Iterator[str]:
    """Yield what a site's branch has to be that a plain attention or feed-forward branch is not."""
    if plan.branch == "merged":
        yield "a branch that is self- and cross-attention in one"
    for place in plan.inner_norms:
        yield f"a norm on {'its ' if place in ('heads', 'activation') else ''}{place}"
    if plan.head_scale is not None:
        yield "a scale per head"
    if plan.values != "own":
        yield "values that its stream makes (plan.stream.values)"
    if plan.attention_multiplier is not None:
        yield "attention scores times a factor of its own (plan.attention_multiplier)"
    if plan.preactivation_scale is not None:
        yield "scales before the activation"
    for shifted in sorted(plan.shifts.keys() - {"input"}):
        yield f"a shift of the {shifted}"
    if not plan.bias:
        yield NO_BIASES


def _of_ends(plan: Ends) -> Iterator[str]:
    if plan.embedding_multiplier is not None:
        yield "a multiplier of its own on the embedded rows"
    if plan.unit_rows:
        yield "embedding rows of unit length in every use"
    if plan.logit_scale != ONE:
        yield "a scale on the logits"


def _of_scheme(scheme: ResidualScheme, plan: StackPlan) -> Iterator[str]:
    site_plans = [site_plan for _, site_plan in plan.sites]
    if any(isinstance(scale, Scheduled) for one in site_plans for scale in _scales(one)):
        yield "a call of advance(step) after each update"
    if type(scheme).prepare is not ResidualScheme.prepare:
        yield "a call of scheme.prepare(model, batches) before the first update"
    if type(scheme).after_update is not ResidualScheme.after_update:
        yield "a call of scheme.after_update(model) after each update"
    policies = [policy for one in site_plans for policy in one.policy.values()]
    if any(policy not in (Policy(), Policy(weight_decay=0.0)) for policy in policies):
        yield "the optimiser's multipliers in site.plan.policy"


def _scales(plan: SitePlan) -> tuple[Any, Any]:
    return plan.skip, plan.branch_scale
