"""The coefficients of a scheme at a depth: per stack where they are constant, and per site."""

from typing import Any

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Architecture,
    Constant,
    OptimizerFamily,
    ResidualScheme,
    Role,
    Scale,
    Site,
    SitePlan,
    StackContext,
    StackName,
    undefined,
)
from deepnet.schemes.catalogue import describe_scheme

_BRANCH_ROLES = ("v", "out", "fc1", "fc2")


def coefficients(
    scheme: ResidualScheme,
    *,
    encoder_layers: int,
    decoder_layers: int,
    optimizer_family: OptimizerFamily = "adam",
    loops: int = 1,
) -> dict[str, Any]:
    """Return alpha (skip) and beta (gain of v, out, fc1 and fc2) per stack, and all scales per site.

    The architecture follows from the layers: 0 decoder layers mean encoder-only. Where layers run in `loops` with the
    same weights, the numbers of layers are those to plan for, as a rule with all passes in them. A stack that the
    architecture lacks is None, and so is an alpha or beta that is not constant over its stack.
    """
    architecture = _architecture(encoder_layers, decoder_layers)
    if architecture not in scheme.architectures:
        raise ConfigError(f"this scheme is {undefined(scheme, architecture)}")
    result: dict[str, Any] = {
        "scheme": describe_scheme(scheme)["name"],
        "architecture": architecture,
        "encoder": None,
        "decoder": None,
        "sites": [],
    }
    stacks: list[tuple[StackName, int]] = [("encoder", encoder_layers), ("decoder", decoder_layers)]
    for stack, layers in stacks:
        if layers:
            context = _context(
                architecture, stack, encoder_layers, decoder_layers, optimizer_family, loops
            )
            rows = [_row(site, plan) for site, plan in scheme.stack(context).sites]
            result[stack] = {"alpha": _constant_alpha(rows), "beta": _constant_beta(rows)}
            result["sites"] += rows
    return result


def _architecture(encoder_layers: int, decoder_layers: int) -> Architecture:
    if encoder_layers < 0 or decoder_layers < 0 or encoder_layers + decoder_layers == 0:
        raise ConfigError(
            f"encoder_layers is {encoder_layers} and decoder_layers is {decoder_layers}; "
            "expected at least one layer and no negative number"
        )
    if not decoder_layers:
        return "encoder_only"
    return "encoder_decoder" if encoder_layers else "decoder_only"


def _context(
    architecture: Architecture,
    stack: StackName,
    n: int,
    m: int,
    family: OptimizerFamily,
    loops: int,
) -> StackContext:
    """Return a context of the base size: no coefficient here depends on the width."""
    return StackContext(
        architecture=architecture,
        stack=stack,
        encoder_layers=n,
        decoder_layers=m,
        d_model=512,
        ffn_dim=2048,
        num_heads=8,
        tie_embeddings="all",
        optimizer_family=family,
        make_norm=_never_made,
        loops=loops,
    )


def _never_made(width: int) -> Any:
    raise AssertionError("coefficients are read off a plan, nothing is built")


def _row(site: Site, plan: SitePlan) -> dict[str, Any]:
    roles: tuple[Role, ...] = ("fc1", "fc2") if site.kind == "ffn" else ("q", "k", "v", "out")
    gains = {
        role: plan.init[role].value if plan.init[role].kind.startswith("xavier") else None
        for role in roles
    }
    return {
        "stack": site.stack,
        "layer": site.layer,
        "kind": site.kind,
        "skip": _shown(plan.skip),
        "branch": _shown(plan.branch_scale),
        "gain": gains,
    }


def _shown(scale: Scale) -> float | str:
    return scale.value if isinstance(scale, Constant) else type(scale).__name__.lower()


def _constant_alpha(rows: list[dict[str, Any]]) -> float | None:
    values = {row["skip"] for row in rows}
    value = values.pop()
    return value if not values and isinstance(value, float) else None


def _constant_beta(rows: list[dict[str, Any]]) -> float | None:
    values = {gain for row in rows for role, gain in row["gain"].items() if role in _BRANCH_ROLES}
    value = values.pop()
    return value if not values else None
