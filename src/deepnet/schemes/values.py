"""What schemes share that change what attention reads: another scheme's plan and stream, with values of their own."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    ResidualScheme,
    ResidualSite,
    Site,
    SitePlan,
    StackContext,
    StackPlan,
    Stream,
    ValueStream,
    undefined,
)
from deepnet.schemes.catalogue import load_scheme, scheme_class

if TYPE_CHECKING:
    from torch import Tensor

    State = tuple[Any, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ValueScheme(ResidualScheme, ABC):
    """Another scheme of the catalogue whose attention reads other values."""

    base: str = "pre_ln"
    """The scheme whose attention reads other values, with its default options: any of the catalogue but `admin` and
    `ngpt`, which change a model between updates."""

    def __post_init__(self) -> None:
        # code of somebody else's runs only where it was asked for, and nobody is asked about a base
        if ":" in self.base:
            raise ConfigError(f"base is '{self.base}'; expected a scheme of the catalogue")
        kind = scheme_class(self.base)
        if kind is type(self):
            raise ConfigError(f"base '{self.base}' is the scheme itself; take another")
        for name in ("prepare", "advance", "after_update"):
            if getattr(kind, name) is not getattr(ResidualScheme, name):
                raise ConfigError(
                    f"base '{self.base}' overrides {name}(), which is not carried over; take another"
                )

    def stack(self, context: StackContext) -> StackPlan:
        """Return the base's plan with other values, its stream inside one that makes them."""
        base = load_scheme(self.base)
        if context.architecture not in base.architectures:
            raise ConfigError(f"base '{self.base}' is {undefined(base, context.architecture)}")
        plan = base.stack(context)
        sites = tuple((site, self.with_values(context, site, one)) for site, one in plan.sites)
        return replace(plan, sites=sites, stream=self.around(plan.stream))

    @abstractmethod
    def with_values(self, context: StackContext, site: Site, plan: SitePlan) -> SitePlan:
        """Return the base's plan of a site with what its attention reads."""

    @abstractmethod
    def around(self, stream: Stream) -> ValueStream:
        """Return a stream that makes the values and leaves all else to the base's."""


class Around(ValueStream):
    """The state is that of another stream, and values by the branch that they came from, each [B, C, V]."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def open(self, x: "Tensor") -> "State":
        """Return the other stream's first state, and no values."""
        return self.stream.open(x), {}

    def read(self, state: "State", site: ResidualSite) -> "tuple[Tensor, Any]":
        """Return what the other stream reads."""
        return self.stream.read(state[0], site)

    def write(self, state: "State", carry: Any, site: ResidualSite, y: "Tensor") -> "State":
        """Return what the other stream writes, and the values as they are."""
        return self.stream.write(state[0], carry, site, y), state[1]

    def close(self, state: "State", ends: Any) -> "Tensor":
        """Return the other stream's output."""
        return self.stream.close(state[0], ends)

    def peek(self, state: "State") -> "Tensor":
        """Return what the other stream shows."""
        return self.stream.peek(state[0])

    def values(
        self,
        state: "State",
        site: ResidualSite,
        own: "Tensor | None",
        *,
        source: "Tensor",
        ids: "Tensor | None",
    ) -> "tuple[Tensor, State]":
        """Return what the other stream makes of the values, or the attention's own."""
        inner, kept = state
        if isinstance(self.stream, ValueStream):
            own, inner = self.stream.values(inner, site, own, source=source, ids=ids)
        assert own is not None
        return own, (inner, kept)
