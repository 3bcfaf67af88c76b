"""What a scheme plans for a model of the located shape: the sites and draws that the measured ones are held against."""

from dataclasses import dataclass, replace

from torch import nn

from deepnet.adapt.state import SchemeState
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.stacks import LocatedSite, LocatedStack, Shape
from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Init,
    OptimizerFamily,
    ResidualScheme,
    SitePlan,
    StackContext,
    StackPlan,
    Stream,
)
from deepnet.transformer.ends import EndsConfig, choose_ends
from deepnet.transformer.models import Transformer


@dataclass(frozen=True)
class Claim:
    """A located stack and what the scheme plans for it, site by site."""

    stack: LocatedStack
    plan: StackPlan
    is_prepared: bool
    """Whether the scheme sets its trained scales before the first update, so that any value is right."""

    @property
    def pairs(self) -> list[tuple[LocatedSite, SitePlan]]:
        """Return the located sites, each with its plan."""
        plans = (plan for _, plan in self.plan.sites)
        return list(zip(self.stack.sites, plans, strict=True))

    @property
    def has_own_stream(self) -> bool:
        """Return whether the scheme's stream is not the ordinary one, so that it may scale and norm by itself."""
        return type(self.plan.stream) is not Stream

    def init(self, matrix: RoleMatrix) -> Init | None:
        """Return how the scheme draws a matrix of this stack's sites, or None where it is not of this stack."""
        for located, plan in self.pairs:
            if located.measured is matrix.site:
                return plan.init.get(matrix.role)
        return None

    def end_init(self, matrix: RoleMatrix) -> Init:
        """Return how the scheme draws a table; rows of unit length are measured as they are used."""
        ends = self.plan.ends
        if ends.unit_rows and matrix.role != "position":
            return Init("normal", matrix.weight.shape[1] ** -0.5)
        return ends.init[matrix.role]


def end_claim(claims: list[Claim], matrix: RoleMatrix) -> Claim:
    """Return the claim on the stack that a table opens, or the last one, as for the vocabulary."""
    if matrix.role != "vocabulary":
        for claim in claims:
            if matrix.parameter in claim.stack.tables:
                return claim
    return claims[-1]


def chosen_ends(model: nn.Module) -> EndsConfig:
    """Return what a model of ours, or an adopted one, says was chosen of its ends; nothing was of any other."""
    ours = (m.ends for m in model.modules() if isinstance(m, (Transformer, SchemeState)))
    return next(ours, EndsConfig())


def refuse_loops(model: nn.Module) -> None:
    """Raise ConfigError for a model of ours with loops, as sites are told apart by their matrices."""
    loops = max((m.config.loops for m in model.modules() if isinstance(m, Transformer)), default=1)
    if loops > 1:
        raise ConfigError(
            f"the layers of this model run {loops} times with the same weights (model.loops), and an audit tells sites "
            "apart by theirs; audit the same shape with loops = 1 and as many layers as run"
        )


def known_dropout(model: nn.Module) -> float:
    """Return the rate of dropout that a model of ours was made with; 0 of any other."""
    return next((m.config.dropout for m in model.modules() if isinstance(m, Transformer)), 0.0)


def claim_stacks(
    scheme: ResidualScheme,
    stacks: list[LocatedStack],
    shape: Shape,
    *,
    ends: EndsConfig,
    dropout: float,
    optimizer_family: OptimizerFamily,
) -> tuple[list[Claim], list[str]]:
    """Return the claims on the located stacks, and what cannot be compared, in words."""
    if shape.architecture is None:
        return [], [
            "which stack is the encoder and which the decoder: nothing compared with the claim"
        ]
    if shape.architecture not in scheme.architectures:
        return [], [f"the claimed scheme is not defined for {shape.architecture}: nothing compared"]
    claims, unknown = [], []
    for stack in stacks:
        context = replace(_context(stack, shape, optimizer_family), dropout=dropout)
        plan = scheme.stack(context)
        try:
            plan = replace(plan, ends=choose_ends(plan.ends, ends, context))
        except ConfigError as error:
            unknown.append(f"{stack.name}: the claimed scheme's own ends are expected: {error}")
        if len(plan.sites) == len(stack.sites):
            is_prepared = type(scheme).prepare is not ResidualScheme.prepare
            claims.append(Claim(stack, plan, is_prepared))
        else:
            unknown.append(
                f"{stack.name}: {len(stack.sites)} residual sites were located where the claimed "
                f"scheme has {len(plan.sites)}: not compared with the claim"
            )
    return claims, unknown


def _context(stack: LocatedStack, shape: Shape, family: OptimizerFamily) -> StackContext:
    assert shape.architecture is not None
    return StackContext(
        architecture=shape.architecture,
        stack="encoder" if stack.name == "encoder" else "decoder",
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        d_model=shape.d_model,
        ffn_dim=shape.ffn_dim,
        num_heads=shape.num_heads,
        tie_embeddings=shape.tying,
        optimizer_family=family,
        make_norm=nn.LayerNorm,
    )
