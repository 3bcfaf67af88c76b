"""The audit of a model: run it once, find its residual sites and roles, and hold them against a scheme."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from deepnet.audit.attentions import Attention, find_attentions
from deepnet.audit.check_ends import check_ends
from deepnet.audit.check_inputs import check_inputs, eps_notes
from deepnet.audit.check_sites import check_claimed_sites, check_unclaimed_sites, scale_notes
from deepnet.audit.check_weights import check_weights, claimed_std, std_of
from deepnet.audit.claims import (
    Claim,
    chosen_ends,
    claim_stacks,
    end_claim,
    known_dropout,
    refuse_loops,
)
from deepnet.audit.equivalence import equivalence
from deepnet.audit.flow import Flow, trace_flow
from deepnet.audit.inputs import Inputs, cast_inputs, input_tensors, likely_inputs
from deepnet.audit.parameters import shared_names
from deepnet.audit.report import AuditReport, Finding, RoleReport, SiteReport
from deepnet.audit.roles import RoleMatrix, find_roles, unassigned_parameters
from deepnet.audit.sites import MeasuredSite, measure_sites
from deepnet.audit.stacks import LocatedSite, LocatedStack, Shape, locate_stacks, shape_of
from deepnet.audit.tape import Recorder, Tape
from deepnet.errors import ConfigError
from deepnet.probes.listening import fused_paths_off
from deepnet.schemes.base import OptimizerFamily, ResidualScheme
from deepnet.schemes.catalogue import load_scheme


@dataclass(frozen=True)
class Located:
    """What was located in one run of a model."""

    flow: Flow
    stacks: list[LocatedStack]
    matrices: list[RoleMatrix]
    attentions: list[Attention]
    shape: Shape


def audit(
    model: nn.Module,
    inputs: Tensor | Inputs | None = None,
    *,
    claims: str | ResidualScheme | None = None,
    optimizer_family: OptimizerFamily = "adam",
) -> AuditReport:
    """Return where a Transformer's norms, scales and roles are, measured, and how they differ from a claimed scheme.

    `inputs` are the arguments of one call, by default some that Transformers usually take. `model` should be freshly
    initialised where `claims` is given; a copy of it is run in evaluation mode. Without `claims` only what is wrong
    under every scheme is a finding. `optimizer_family` is that of the optimiser which will train the model, where the
    claimed coefficients depend on it. Raises ConfigError where the model cannot be run, or is one of ours with loops.
    """
    scheme = load_scheme(claims) if isinstance(claims, str) else claims
    refuse_loops(model)
    tried, tape = _run(model, (inputs,) if isinstance(inputs, Tensor) else inputs)
    located = locate(tape)
    accepted, unknown = (
        ([], [])
        if scheme is None
        else claim_stacks(
            scheme,
            located.stacks,
            located.shape,
            ends=chosen_ends(model),
            dropout=known_dropout(model),
            optimizer_family=optimizer_family,
        )
    )
    found, notes = _findings(located, accepted, claimed=scheme is not None)
    return AuditReport(
        sites=[_site_report(s, site, located) for s in located.stacks for site in s.sites],
        roles=[_role_report(matrix, accepted) for matrix in located.matrices],
        findings=found,
        notes=notes,
        not_located=[*tried, *unknown, *_not_located(model, located, accepted)],
    )


@torch.no_grad()
def locate(tape: Tape) -> Located:
    """Return the stacks, sites and roles of a run."""
    flow = trace_flow(tape)
    sites, attentions = measure_sites(flow), find_attentions(flow)
    matrices = find_roles(flow, sites, attentions)
    stacks = locate_stacks(flow, sites, matrices, attentions)
    return Located(flow, stacks, matrices, attentions, shape_of(stacks, matrices, attentions))


def record(model: nn.Module, inputs: Inputs, dtype: torch.dtype) -> Tape:
    """Return the tape of one run of a copy of the model in evaluation mode and that type."""
    names = shared_names(model)  # before the copy, which may part what is one
    model = copy.deepcopy(model).to(device="cpu", dtype=dtype).eval()
    inputs = cast_inputs(inputs, dtype)
    recorder = Recorder(model, input_tensors(inputs), names=names)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), fused_paths_off(), recorder:
        returned = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    return Tape(recorder.operations, [recorder.value(one) for one in _tensors(returned)])


def _run(model: nn.Module, inputs: Inputs | None) -> tuple[list[str], Tape]:
    """Return the first run that succeeds, and in words what could not be run."""
    candidates = likely_inputs(model) if inputs is None else iter([("the given inputs", inputs)])
    failures: list[str] = []
    for described, candidate in candidates:
        for dtype in (
            torch.float64,
            torch.float32,
        ):  # some models make float32 tensors of their own
            try:
                return failures, record(model, candidate, dtype)
            except Exception as error:  # whatever a foreign model may raise
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
        failures.append(f"a run with {described}: {reason}")
    raise ConfigError(
        "the model could not be run; give example inputs, as a tuple that the factory returns after "
        "the model\n" + "\n".join(failures or ["nothing to guess its inputs from was found"])
    )


def _tensors(returned: Any) -> list[Tensor]:
    if isinstance(returned, Tensor):
        return [returned]
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    return (
        [t for one in returned for t in _tensors(one)] if isinstance(returned, list | tuple) else []
    )


@torch.no_grad()
def _findings(
    located: Located, claims: list[Claim], *, claimed: bool
) -> tuple[list[Finding], list[Finding]]:
    """Return what is wrong, and what is only written in another form."""
    found: list[Finding] = []
    notes: list[Finding] = []
    for stack in located.stacks if not claimed else ():
        found += check_unclaimed_sites(stack, located.matrices)
    for claim in claims:
        weights = check_weights(claim, located.matrices, located.shape)
        judged = equivalence(claim, located.flow, located.matrices, located.attentions, weights)
        off, made_up = judged.split()
        found += [*check_claimed_sites(judged, located.shape), *off]
        if not claim.has_own_stream:
            found += check_inputs(judged)
            made_up += scale_notes(judged, located.shape)
            made_up += eps_notes(judged, located.flow)
        notes += made_up
    return [*found, *check_ends(claims, located.matrices)], notes


def _site_report(stack: LocatedStack, site: LocatedSite, located: Located) -> SiteReport:
    measured = site.measured
    last = [m.where for m in located.matrices if m.site is measured][-1:]
    through = f" ({last[0]})" if last else ""
    return SiteReport(
        where=f"{stack.name} {site.layer} {site.kind}{through}",
        norm=site.norms.shown(),
        skip=None if measured.skip is None else measured.skip.shown(),
        branch=None if measured.branch is None else measured.branch.shown(),
    )


def _role_report(matrix: RoleMatrix, claims: list[Claim]) -> RoleReport:
    inits = [init for claim in claims if (init := claim.init(matrix)) is not None]
    if claims and matrix.site is None:
        inits = [end_claim(claims, matrix).end_init(matrix)]
    return RoleReport(
        where=matrix.where,
        role=matrix.role,
        std=std_of(matrix.weight),
        expected=claimed_std(matrix, inits[0]) if inits else None,
    )


def _not_located(model: nn.Module, located: Located, claims: list[Claim]) -> Iterator[str]:
    if not located.stacks:
        yield "residual sites: no addition of a branch to what it was computed from"
    for stack in located.stacks:
        for site in stack.sites:
            for name, scale in _scales(site.measured):
                if scale is None:
                    yield f"{stack.name} {site.layer} {site.kind}: the {name}'s scale, not a number per channel"
    main = {site.measured.sum for stack in located.stacks for site in stack.sites}
    others = len(set(located.flow.sums.values()) - main)
    if others:
        yield f"{others} additions of a branch to a second stream"
    for claim in claims:
        if claim.has_own_stream:
            yield (
                f"{claim.stack.name}: the claimed scheme's stream scales and norms by itself; only norms "
                "on the branches are compared"
            )
    yield from _matrices_without_role(model, located)


def _scales(site: MeasuredSite) -> list[tuple[str, object]]:
    return [("skip", site.skip), ("branch", site.branch)]


def _matrices_without_role(model: nn.Module, located: Located) -> Iterator[str]:
    unassigned = unassigned_parameters(located.flow, located.matrices)
    yield from (f"the role of {name}" for name in unassigned)
    known = {matrix.parameter for matrix in located.matrices} | set(unassigned)
    names = shared_names(model)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and names[name] not in known:
            yield f"a use of {name} by these inputs"
