"""The residual sites of a whole stack, without the branches: those are the caller's."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from deepnet.blocks.demands import demands
from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    OptimizerFamily,
    ResidualScheme,
    StackName,
    StackPlan,
)
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import TransformerConfig, check_defined
from deepnet.transformer.plans import plan_stack
from deepnet.transformer.residual import Residual, build_norm
from deepnet.transformer.scales import ScaleBuilder
from deepnet.transformer.stacks import StackEnds
from deepnet.transformer.stepping import Stepped


class ResidualSites(Stepped):
    """A stack's residual sites, by layer and branch, and its ends.

    x goes through `open`, `through` for every site, and `close`. Where a scheme's state is the stream itself, a site
    also stands alone: `entered, skip = site.enter(x)`, then `x = site(skip, branch(entered))`.
    """

    def __init__(self, plan: StackPlan, *, d_model: int, dropout: float) -> None:
        super().__init__()
        self.plan = plan
        self.norm = build_norm(plan.ends.embedding_norm, d_model)
        scales = ScaleBuilder(site_plan for _, site_plan in plan.sites)
        make = partial(Residual, d_model=d_model, dropout=dropout, scales=scales)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: make(one, site=site) for name, (site, one) in sites.items()})
            for sites in plan.layers()
        )
        self.ends = StackEnds(plan.ends, d_model)
        self.count_updates()

    def open(self, x: Tensor) -> Any:
        """Return the first state, from the embedded input [B, T, D]; raises ConfigError before there are weights."""
        self.check_made()
        return self.plan.stream.open(x if self.norm is None else self.norm(x))

    def through(self, state: Any, site: Residual, branch: Callable[[Tensor], Tensor]) -> Any:
        """Return the state after a site, whose branch maps [B, T, D] to [B, T, D].

        Raises ConfigError where the scheme's stream makes the branch's values: call its `read`, `values` and `write`.
        """
        if site.plan.values != "own":
            raise ConfigError(
                f"this scheme's stream makes the values of the branch '{site.site.kind}', which `through` cannot give "
                "it; call read, values and write of plan.stream for this site"
            )
        x, carry = self.plan.stream.read(state, site)
        return self.plan.stream.write(state, carry, site, branch(x))

    def close(self, state: Any) -> Tensor:
        """Return the stack's output [B, T, D], normed where the scheme has a norm at the end."""
        return self.plan.stream.close(state, self.ends)


def residual_sites(
    scheme: ResidualScheme | str,
    config: TransformerConfig,
    *,
    stack: StackName | None = None,
    optimizer_family: OptimizerFamily = "adam",
    by_hand: bool = False,
) -> ResidualSites:
    """Return the residual sites that `scheme` plans for a stack of a model of that shape.

    `stack` is needed where there are two. Of a shape with loops these are the sites of the stored layers, which you run
    so many times. Raises ConfigError where the scheme asks more of the model than its sites can do, saying what;
    `by_hand` says that you do it.
    """
    scheme = load_scheme(scheme) if isinstance(scheme, str) else scheme
    check_defined(scheme, config.architecture)
    name = _stack_name(config, stack)
    _, plan = plan_stack(scheme, config, name, optimizer_family=optimizer_family)
    asked = demands(scheme, plan)
    if asked and not by_hand:
        raise ConfigError(
            f"this scheme asks more than its sites can do: {'; '.join(asked)}. Where your model does that, "
            "say by_hand=True; deepnet.Transformer does it by itself"
        )
    return ResidualSites(plan, d_model=config.d_model, dropout=config.dropout)


def _stack_name(config: TransformerConfig, stack: StackName | None) -> StackName:
    layers: dict[StackName, int] = {
        "encoder": config.encoder_layers,
        "decoder": config.decoder_layers,
    }
    present = [name for name, number in layers.items() if number]
    if stack is None and len(present) == 1:
        return present[0]
    if stack is None or stack not in present:
        raise ConfigError(f"stack is {stack!r}; expected one of {', '.join(present)}")
    return stack
