"""What there is to know of a model that somebody else wrote: its residual sites in order, and their weights by role.

An `Anatomy` changes nothing. Probes, audits and `adapt` read it; a role is resolved from the module that owns the
weight to a (parameter, slice), never from the name of a parameter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from deepnet.anatomy.rows import TokenRows
from deepnet.errors import AdaptError
from deepnet.schemes.base import Architecture, Branch, Role, Site, StackName
from deepnet.transformer.residual import Residual

Placement = Literal["pre", "post"]


class Sited(nn.Module):
    """A layer of somebody else's class whose residual additions are modules of ours, in `sites` by kind of branch."""

    sites: nn.ModuleDict

    def through(self, kind: Branch, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the stream [B, T, D] after the site of that kind."""
        entered, skip = self.enter(kind, x)
        return self.leave(kind, skip, branch(entered))

    def enter(self, kind: Branch, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of a branch and the skip, from the stream [B, T, D]."""
        site: Any = self.sites[kind]
        entered: tuple[Tensor, Tensor] = site.enter(x)
        return entered

    def leave(self, kind: Branch, skip: Tensor, y: Tensor) -> Tensor:
        """Return the stream after the branch's output `y`, all [B, T, D]."""
        x: Tensor = self.sites[kind](skip, y)
        return x


def stock_class(kind: type[nn.Module], ours: type[nn.Module] = Sited) -> type[nn.Module]:
    """Return somebody else's class that a class with sites, or other modules of `ours`, stands in for."""
    kinds = (kind for kind in kind.__mro__ if issubclass(kind, nn.Module))
    return next(kind for kind in kinds if not issubclass(kind, ours))


@dataclass(frozen=True, kw_only=True, eq=False)
class Weight:
    """A matrix of one role: some rows of a parameter, and the bias that goes with them."""

    role: Role
    owner: nn.Module
    name: str = "weight"
    bias_name: str = "bias"
    rows: tuple[int, int] | None = None
    """First row and the row after the last; None where the whole parameter is of this role."""
    transposed: bool = False
    """True where the parameter is stored [in, out]."""
    factor: float = 1.0
    """What stands for the role's weight is this times it: K^(-1/2) for q where attention is not scaled (T5)."""

    @property
    def parameter(self) -> nn.Parameter:
        """Return the parameter that holds the matrix; raises AdaptError where an adapter or a parametrization does."""
        try:
            return self.owner.get_parameter(self.name)
        except AttributeError as error:
            raise AdaptError(
                f"{type(self.owner).__name__} has no parameter '{self.name}': its matrix is made of others"
            ) from error

    @property
    def bias_parameter(self) -> nn.Parameter | None:
        """Return the parameter that holds the bias, None where there is none."""
        return dict(self.owner.named_parameters(recurse=False)).get(self.bias_name)

    def matrix(self) -> Tensor:
        """Return the matrix [fan_out, fan_in] as a view that is not differentiated."""
        return self._cut(self.parameter.detach())

    def gradient(self) -> Tensor | None:
        """Return the gradient of the matrix, [fan_out, fan_in], as a view, None where there is none."""
        gradient = self.parameter.grad
        return None if gradient is None else self._cut(gradient.detach())

    def bias(self) -> Tensor | None:
        """Return the bias [fan_out] as a view, None where there is none."""
        bias = self.bias_parameter
        return None if bias is None else bias.detach()[self._slice]

    def _cut(self, stored: Tensor) -> Tensor:
        return (stored.T if self.transposed else stored)[self._slice]

    @property
    def _slice(self) -> slice:
        return slice(None) if self.rows is None else slice(*self.rows)


class Part(NamedTuple):
    """A residual site before it has a number: what a family's file says of it."""

    kind: Branch
    owner: nn.Module
    """The module whose forward holds the addition."""
    sited: type[nn.Module]
    """The class that the owner takes on for its additions to be modules."""
    norm: str
    """Where the stock norm is, from the owner."""
    placement: Placement
    weights: tuple[Weight, ...]
    branch: nn.Module | None = None
    """The branch, where it is a module of ours."""
    installed: Residual | None = None
    """The site's module, where the owner is one of ours."""
    peek: Callable[[Any], Tensor] | None = None
    """The one tensor [B, T, D] to look at of what an owner of ours is given or returns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundSite:
    """A residual site of a model and what belongs to it."""

    site: Site
    part: Part

    @property
    def residual(self) -> Residual | None:
        """Return the site's own module, None in a stock layer."""
        owner = self.part.owner
        if isinstance(owner, Sited):
            found: Any = owner.sites[self.site.kind]
            return found  # type: ignore[no-any-return]
        return self.part.installed

    def norms(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the norm before the branch and the norm after the addition, as they are now."""
        residual = self.residual
        if residual is not None:
            return residual.pre, residual.post
        norm = self.part.owner.get_submodule(self.part.norm)
        return (norm, None) if self.part.placement == "pre" else (None, norm)


class Slot(NamedTuple):
    """A place for a norm: an attribute of a module, which may be None only where `optional`."""

    owner: nn.Module
    name: str
    optional: bool = False

    def get(self) -> nn.Module | None:
        """Return what is there now."""
        return self.owner._modules.get(self.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundStack:
    """A stack of a model: its sites in order, its ends and its sizes."""

    name: StackName
    module: nn.Module
    sites: tuple[FoundSite, ...]
    d_model: int
    ffn_dim: int
    num_heads: int
    final: Slot | None = None
    """Where the norm after the last site is or could be."""
    entry_norm: nn.Module | None = None
    """The norm after the embeddings."""
    entry: tuple[nn.Parameter, ...] = ()
    """The tables whose sum is the stream's input; empty where they are unknown or fixed."""
    rows: tuple[TokenRows, ...] = ()
    """Where its tokens' rows are used: embeddings first, in the last stack the vocabulary projection after them."""
    loops: int = 1
    """Times that its layers run in a call."""
    switches: tuple[str, ...] = ()
    """Attributes of the module that are True where a fused path may go around its layers."""

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return self.sites[-1].site.layer


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Where the residual sites of a model are."""

    model: nn.Module
    family: str
    architecture: Architecture
    stacks: tuple[FoundStack, ...]
    make_norm: Callable[[int], nn.Module]
    """Makes a norm of the model's own class for a width."""
    vocabulary: nn.Parameter | None = None
    tie_embeddings: Literal["all", "decoder", "none"] = "none"

    @cached_property
    def _paths(self) -> dict[nn.Module, str]:
        return {module: path for path, module in self.model.named_modules()}

    def path(self, module: nn.Module) -> str:
        """Return the name of a module from the model."""
        return self._paths[module]

    def rows(self) -> tuple[TokenRows, ...]:
        """Return every use of a token's row, the encoder's first; none of torch's or our own models."""
        return tuple(use for stack in self.stacks for use in stack.rows)

    def sites(self) -> Iterator[FoundSite]:
        """Yield every site, the encoder's first."""
        for stack in self.stacks:
            yield from stack.sites


def arrange(stack: StackName, layers: list[tuple[Part, ...]]) -> tuple[FoundSite, ...]:
    """Return the sites of a stack, numbered, from the parts of each layer."""
    width = len(layers[0])
    return tuple(
        FoundSite(
            site=Site(
                stack=stack,
                layer=number + 1,
                kind=part.kind,
                index=number * width + place + 1,
                first_in_layer=place == 0,
                last_in_layer=place == len(parts) - 1,
            ),
            part=part,
        )
        for number, parts in enumerate(layers)
        for place, part in enumerate(parts)
    )
