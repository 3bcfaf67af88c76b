"""Whether a scheme can live on a model, and what it answers for each of its stacks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepnet.anatomy.base import Anatomy, FoundSite, FoundStack, arrange
from deepnet.blocks.demands import NO_BIASES, branch_demands
from deepnet.errors import AdaptError, DeepNetError
from deepnet.schemes.base import (
    ONE,
    Architecture,
    Ends,
    OptimizerFamily,
    ResidualScheme,
    SitePlan,
    StackContext,
    StackPlan,
    Stream,
    embedding_init,
    undefined,
)
from deepnet.schemes.catalogue import describe_scheme, list_schemes, load_scheme
from deepnet.transformer.ends import SCHEMES_OWN, EndsConfig, choose_ends


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the call says of the model besides the scheme."""

    optimizer_family: OptimizerFamily = "adam"
    layers: tuple[int, int] | None = None
    """Encoder and decoder layers of the whole, where the model given is one stack of it."""
    ends: EndsConfig = SCHEMES_OWN
    """What is chosen of the embeddings and the vocabulary projection."""


@dataclass(frozen=True)
class PlannedStack:
    """A stack and what the scheme answers for it."""

    found: FoundStack
    plan: StackPlan
    architecture: Architecture


def plan_stacks(
    anatomy: Anatomy, scheme: ResidualScheme, setting: Setting
) -> tuple[PlannedStack, ...]:
    """Return the scheme's plan for every stack, with the chosen ends in it.

    Raises AdaptError that says why not and which schemes can, ConfigError where the scheme fixes what is chosen.
    """
    contexts = list(_contexts(anatomy, setting))
    reasons = _reasons(contexts, scheme)
    if reasons:
        name = describe_scheme(scheme)["name"]
        fitting = [other for other in list_schemes() if not _reasons(contexts, load_scheme(other))]
        raise AdaptError(
            f"'{name}' cannot live on this {anatomy.family} model: {'; '.join(reasons)}. "
            f"What can: {', '.join(fitting) or 'none of the catalogue'}"
        )
    return tuple(
        PlannedStack(stack, _plan(scheme, context, setting.ends), context.architecture)
        for stack, context in contexts
    )


def _plan(scheme: ResidualScheme, context: StackContext, choice: EndsConfig) -> StackPlan:
    plan = scheme.stack(context)
    return replace(plan, ends=choose_ends(plan.ends, choice, context))


def _contexts(anatomy: Anatomy, setting: Setting) -> Iterator[tuple[FoundStack, StackContext]]:
    """Yield every stack with what a scheme may know of it."""
    architecture, encoder_layers, decoder_layers = _whole(anatomy, setting.layers)
    for stack in anatomy.stacks:
        found = _as_decoder(stack) if architecture == "decoder_only" else stack
        yield (
            found,
            StackContext(
                architecture=architecture,
                stack=found.name,
                encoder_layers=encoder_layers,
                decoder_layers=decoder_layers,
                d_model=found.d_model,
                ffn_dim=found.ffn_dim,
                num_heads=found.num_heads,
                tie_embeddings=anatomy.tie_embeddings,
                optimizer_family=setting.optimizer_family,
                make_norm=anatomy.make_norm,
            ),
        )


def _whole(anatomy: Anatomy, layers: tuple[int, int] | None) -> tuple[Architecture, int, int]:
    """Return the architecture of the whole and its encoder and decoder layers."""
    depths = {stack.name: stack.num_layers for stack in anatomy.stacks}
    found = depths.get("encoder", 0), depths.get("decoder", 0)
    if layers is None:
        if anatomy.architecture == "encoder_decoder" and not all(found):
            raise AdaptError(
                f"this {anatomy.family} has cross-attention to an encoder that it does not hold; say how deep the "
                f"whole is: layers=(encoder layers, {found[1]})"
            )
        return anatomy.architecture, *found
    causal = tuple(depths) == ("encoder",) and layers == (0, found[0])
    if not causal and any(n not in (0, given) for n, given in zip(found, layers, strict=True)):
        raise AdaptError(
            f"layers is {layers}, but the model has {found} encoder and decoder layers"
        )
    if not layers[1]:
        return "encoder_only", *layers
    return ("encoder_decoder" if layers[0] else "decoder_only"), *layers


def _as_decoder(stack: FoundStack) -> FoundStack:
    """Return a stack without cross-attention as a decoder: torch's encoder is one where its mask is causal."""
    if stack.name == "decoder":
        return stack
    width = max(found.site.index for found in stack.sites) // stack.num_layers
    parts = [found.part for found in stack.sites]
    layers = [tuple(parts[i : i + width]) for i in range(0, len(parts), width)]
    return replace(stack, name="decoder", sites=arrange("decoder", layers))


# What foreign layers cannot carry out -------------------------------------------------------------------------------


def _reasons(
    contexts: list[tuple[FoundStack, StackContext]], scheme: ResidualScheme
) -> tuple[str, ...]:
    """Return why the scheme cannot live there, each reason once; none where it can."""
    architecture = contexts[0][1].architecture
    if architecture not in scheme.architectures:
        return (f"it is {undefined(scheme, architecture)}",)
    if type(scheme).after_update is not ResidualScheme.after_update:
        return ("it rewrites weights after each update",)
    try:
        found = [
            reason
            for stack, context in contexts
            for reason in _stack_reasons(stack, scheme.stack(context), context)
        ]
    except DeepNetError as error:
        return (str(error),)
    return tuple(dict.fromkeys(found))


def _stack_reasons(stack: FoundStack, plan: StackPlan, context: StackContext) -> Iterator[str]:
    makes_values = any(site_plan.values != "own" for _, site_plan in plan.sites)
    if type(plan.stream) is not Stream and not makes_values:
        yield f"it hands on more than one tensor from site to site ({type(plan.stream).__name__})"
    here = [(found.site.layer, found.site.kind) for found in stack.sites]
    if [(site.layer, site_plan.branch) for site, site_plan in plan.sites] != here:
        yield f"its branches differ from the {stack.name}'s ({', '.join(dict(here[::-1]).values())})"
        return
    for found, (_, site_plan) in zip(stack.sites, plan.sites, strict=True):
        yield from _site_reasons(found, site_plan)
    yield from _end_reasons(stack, plan.ends, context)


def _site_reasons(found: FoundSite, plan: SitePlan) -> Iterator[str]:
    has_bias = any(weight.bias() is not None for weight in found.part.weights)
    for what in branch_demands(plan):
        if has_bias or what != NO_BIASES:
            yield f"it asks its branches for {what}"
    if plan.policy:
        yield "it needs multipliers of the learning rate per role, and the optimiser is not ours"
    if plan.extra:
        yield "its sites have modules of their own"


def _end_reasons(stack: FoundStack, ends: Ends, context: StackContext) -> Iterator[str]:
    if ends.embedding_norm is not None and stack.entry_norm is None:
        yield "it needs a norm after the embeddings"
    if ends.embedding_multiplier is not None or ends.unit_rows:
        yield "it scales the embeddings' rows"
    if ends.exit_scale != ONE or ends.exit_shift is not None or ends.logit_scale != ONE:
        yield "it scales or shifts what the stack or the projection returns"
    if ends.merge is not None:
        yield "a trained module makes one tensor of the stack's last state"
    if ends.init != embedding_init(context) or ends.policy:
        yield "it treats the embeddings in a way of its own"
