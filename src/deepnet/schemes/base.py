"""The contract between a residual scheme and the layers that carry out what it answers.

A scheme answers with data: `scheme.stack(context)` returns a `StackPlan` with one `SitePlan` per residual site and the
`Ends` of the stack. The ordinary site computes

    x <- post(skip * s + branch * out(f(pre(x))))        s = x, or pre(x) where skip_from = "normed"

What data cannot say is behaviour, each with a default that does nothing special: a `Stream` (how the state handed from
site to site is read and written), `prepare`, `advance` and `after_update`. Layers never ask for a scheme's name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from deepnet.errors import SchemeError

if TYPE_CHECKING:
    from torch import Tensor, nn

Architecture = Literal["encoder_decoder", "encoder_only", "decoder_only"]
StackName = Literal["encoder", "decoder"]
Branch = Literal["self", "cross", "merged", "ffn"]
Role = Literal[
    "q", "k", "v", "out", "fc1", "gate", "fc2",
    "embedding", "position", "vocabulary", "bias", "norm", "scale",
]  # fmt: skip
BRANCH_MATRICES: tuple[Role, ...] = ("q", "k", "v", "out", "fc1", "gate", "fc2")
"""The roles of the matrices that a branch is made of."""
OptimizerFamily = Literal["sgd", "adam", "lamb"]
InitKind = Literal["xavier_normal", "xavier_uniform", "normal", "uniform", "constant"]

EndsKey = Literal["rows", "std", "lr", "weight_decay"]
Change = Literal["norm", "scale", "init", "schedule", "stream", "values"]
Values = Literal["own", "mixed", "given"]
"""What an attention reads: the values that it projects, what a `ValueStream` makes of these, or the stream's alone."""

ALL_ARCHITECTURES: tuple[Architecture, ...] = ("encoder_decoder", "encoder_only", "decoder_only")


# What a plan is made of ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Init:
    """How one role's weight is drawn; `value` is the gain (xavier), std (normal), limit (uniform) or constant."""

    kind: InitKind
    value: float

    def std(self, fan_in: int, fan_out: int) -> float:
        """Return the standard deviation this draw aims at for a matrix of those fans."""
        if self.kind in ("xavier_normal", "xavier_uniform"):
            return self.value * math.sqrt(2.0 / (fan_in + fan_out))
        return {"normal": self.value, "uniform": self.value / math.sqrt(3.0), "constant": 0.0}[
            self.kind
        ]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Multipliers on the optimiser's learning rate, weight decay and eps for one role."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    depth: int = 0
    """Layers of its stack where the parameter is a matrix of a branch, else 0; a model fills it in, no scheme does."""


@dataclass(frozen=True)
class Norm:
    """A norm made by `make(width)`, its output multiplied by `multiplier`."""

    make: "Callable[[int], nn.Module]"
    multiplier: float = 1.0


@dataclass(frozen=True)
class Constant:
    """A scale fixed at construction."""

    value: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A scale that is trained: one number or one per channel, owned by a site or shared by a layer or stack."""

    init: float
    shape: Literal["scalar", "vector"] = "scalar"
    scope: Literal["site", "layer", "stack"] = "site"
    transform: "Callable[[Tensor], Tensor] | None" = None
    """What the trained numbers pass through before they multiply, such as a sigmoid; `init` is before it."""
    name: str = ""
    """Scales of one name and scope are one parameter, whatever they multiply; by default each use has its own."""
    stops_gradient: bool = False
    """Whether what is multiplied gets the gradient that the scale gave it at the start, wherever training moves it."""


@dataclass(frozen=True)
class Scheduled:
    """A scale that is a function of the number of optimiser updates done: `at(step)`, computed in float64."""

    at: Callable[[int], float]


Scale = Constant | Learned | Scheduled
ONE = Constant(1.0)


# Where a plan applies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Site:
    """One residual site: its stack, its layer and its place in the stack (both 1-based), and its branch."""

    stack: StackName
    layer: int
    kind: Branch
    index: int
    first_in_layer: bool
    last_in_layer: bool


@dataclass(frozen=True, kw_only=True)
class StackContext:
    """What a scheme may know of the stack it plans; N is `encoder_layers`, M is `decoder_layers`."""

    architecture: Architecture
    stack: StackName
    encoder_layers: int
    decoder_layers: int
    d_model: int
    ffn_dim: int
    num_heads: int
    tie_embeddings: Literal["all", "decoder", "none"]
    optimizer_family: OptimizerFamily
    make_norm: "Callable[[int], nn.Module]"
    dropout: float = 0.0
    """Rate on the embedding and on what branches return; 0 where it is not known."""
    num_kv_heads: int = 0
    """Heads of keys and values; 0 where it is not known."""
    vocab_size: int = 0
    """Ids that the stack may be given, padding the last of them; 0 where it is not known."""
    loops: int = 1
    """Times that the layers run with the same weights; the numbers of layers above have all passes in them, unless
    the recipe asks for coefficients of the stored depth."""

    @property
    def num_layers(self) -> int:
        """Return the number of layers of this stack."""
        return self.encoder_layers if self.stack == "encoder" else self.decoder_layers

    def norm(self, *, multiplier: float = 1.0) -> Norm:
        """Return the model's own kind of norm."""
        return Norm(self.make_norm, multiplier)


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """What one residual site computes and how its weights start."""

    branch: Branch
    pre: Norm | None = None
    out: Norm | None = None
    post: Norm | None = None
    skip: Scale = ONE
    branch_scale: Scale = ONE
    skip_from: Literal["raw", "normed"] = "raw"
    inner_norms: Mapping[Literal["q", "k", "v", "heads", "activation"], Norm] = field(
        default_factory=dict
    )
    head_scale: Scale | None = None
    attention_multiplier: float | None = None
    values: Values = "own"
    preactivation_scale: Scale | None = None
    shifts: Mapping[Literal["input", "preactivation", "activation"], float] = field(
        default_factory=dict
    )
    bias: bool = True
    init: Mapping[Role, Init] = field(default_factory=dict)
    policy: Mapping[Role, Policy] = field(default_factory=dict)
    extra: "Mapping[str, Callable[[], nn.Module]]" = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What a stack does between its embedding and its first site, and after its last site."""

    embedding_norm: Norm | None = None
    embedding_multiplier: float | Learned | None = None
    unit_rows: bool = False
    final: Norm | None = None
    exit_scale: Scale = ONE
    exit_shift: float | None = None
    logit_scale: Scale = ONE
    init: Mapping[Role, Init] = field(default_factory=dict)
    policy: Mapping[Role, Policy] = field(default_factory=dict)
    extra: "Mapping[str, Callable[[], nn.Module]]" = field(default_factory=dict)
    merge: "Callable[[], nn.Module] | None" = None
    """A trained module that makes one tensor [B, T, D] of a stream's last state, before all else at the end."""
    fixes: tuple[EndsKey, ...] = ()
    """What of the embeddings and the vocabulary projection is part of the scheme and cannot be chosen beside it."""


@runtime_checkable
class ResidualSite(Protocol):
    """What a scheme sees of a residual site: its two halves, its place and the modules it asked for.

    The sites of a model are those of `model.modules()` that are instances of it.
    """

    site: Site
    extra: Any

    def enter(self, x: "Tensor") -> "tuple[Tensor, Tensor]":
        """Return the branch's input and what the skip carries, from the stream [B, T, D]."""

    def leave(self, y: "Tensor") -> "Tensor":
        """Return dropout(out(y)), what the branch adds before it is scaled, both [B, T, D]."""

    def add(self, skip: "Tensor", y: "Tensor") -> "Tensor":
        """Return post(skip_scale * skip + branch_scale * y), all [B, T, D]."""

    def __call__(self, skip: "Tensor", y: "Tensor") -> "Tensor":
        """Return add(skip, leave(y)), all [B, T, D]."""


class Stream:
    """The state handed from site to site: by default one tensor [B, T, D].

    A state is made of tensors and kept on no module, so that recompute and pipeline cuts are safe; parameters that a
    stream needs are the `extra` modules of a site or of the ends. No stream mixes positions.
    """

    def open(self, x: "Tensor") -> Any:
        """Return the first state, from the embedded input [B, T, D]."""
        return x

    def read(self, state: Any, site: ResidualSite) -> "tuple[Tensor, Any]":
        """Return the branch's input [B, T, D] and what `write` will need of the state."""
        return site.enter(state)

    def write(self, state: Any, carry: Any, site: ResidualSite, y: "Tensor") -> Any:
        """Return the next state, from the branch's output `y` [B, T, D]."""
        return site(carry, y)

    def close(self, state: Any, ends: Any) -> "Tensor":
        """Return the stack's output [B, T, D]; `ends` holds the final norm and the ends' extra modules.

        Where the ends have a `merge`, calling them begins with it: their weights are read inside that call.
        """
        output: Tensor = ends(state)
        return output

    def peek(self, state: Any) -> "Tensor":
        """Return the one tensor [B, T, D] that a probe should look at."""
        looked_at: Tensor = state
        return looked_at


class ValueStream(Stream, ABC):
    """A stream that has a say in the values of self- and cross-attention, where a site's plan asks for it."""

    @abstractmethod
    def values(
        self,
        state: Any,
        site: ResidualSite,
        own: "Tensor | None",
        *,
        source: "Tensor",
        ids: "Tensor | None",
    ) -> "tuple[Tensor, Any]":
        """Return the values [B, C, V] that an attention reads, and the state from which `write` goes on.

        It is called between `read` and `write`. `own` is what the attention projects of `source` [B, C, D], its input
        or the memory; None where its values are "given", and it has no projection. `ids` [B, C] are the tokens of the
        source, None of a memory. In decoding step by step, a call sees what is new.
        """


@runtime_checkable
class HasRoles(Protocol):
    """An extra module of a site with matrices that are drawn and trained by role."""

    def roles(self) -> "Mapping[Role, Tensor]":
        """Return those matrices by role; an embedding's learning rate and decay are those of the stack's embedding."""


@dataclass(frozen=True, kw_only=True)
class StackPlan:
    """Every site of a stack in order, its ends and its stream."""

    sites: tuple[tuple[Site, SitePlan], ...]
    ends: Ends
    stream: Stream

    def layers(self) -> list[dict[str, tuple[Site, SitePlan]]]:
        """Return the sites of each layer in order, by name: that of the branch, "ffn2" for a second one of its kind."""
        layers: dict[int, dict[str, tuple[Site, SitePlan]]] = {}
        for site, plan in self.sites:
            layer = layers.setdefault(site.layer, {})
            taken = sum(plan.branch == other.branch for _, other in layer.values())
            layer[f"{plan.branch}{taken + 1}" if taken else plan.branch] = (site, plan)
        return list(layers.values())


# The scheme ---------------------------------------------------------------------------------------------------------


class SteppedModel(Protocol):
    """A model whose scheduled scales follow the number of optimiser updates."""

    def advance(self, step: int) -> None:
        """Set every scheduled scale to its value after `step` updates."""


class RoleWeight(NamedTuple):
    """A matrix [fan_out, fan_in] with its role, where it stands and what is planned for it."""

    stack: StackName
    layer: int
    """From 1; 0 at the ends."""
    role: Role
    parameter: "Tensor"
    init: Init
    policy: Policy


class ModelOfRoles(Protocol):
    """A model that knows its matrices by role."""

    def role_weights(self) -> Iterable[RoleWeight]:
        """Yield every matrix once, embeddings and the vocabulary projection included."""


@dataclass(frozen=True, kw_only=True)
class ResidualScheme:
    """A residual scheme: its fields are its hyper-parameters, its methods its answers."""

    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    changes: ClassVar[Change | None] = None
    """What it changes most, under which the catalogue lists it; every scheme of the catalogue says so."""
    grew_out_of: ClassVar[tuple[str, ...]] = ()
    """The schemes of the catalogue whose equation it changes: edges of the family tree."""
    folds_to: ClassVar[str | None] = None
    """The plain scheme that a model trained under the default options can be rewritten into; None: no such."""
    architectures: ClassVar[tuple[Architecture, ...]] = ALL_ARCHITECTURES
    restriction: ClassVar[str] = ""
    """Why it is defined for no other architecture."""
    warmup: ClassVar[bool] = True
    """Whether its source warms the learning rate up; False: a recipe that says nothing of it starts at the peak."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return the plan of one site."""
        raise TypeError(f"{type(self).__module__} answers neither `site` nor `stack`")

    def ends(self, context: StackContext) -> Ends:
        """Return the ends of the stack; by default an embedding of std d^(-1/2) and the final norm."""
        return Ends(final=self.final_norm(context), init=embedding_init(context))

    def final_norm(self, context: StackContext) -> Norm | None:
        """Return the norm after the last site; by default there is none."""
        return None

    def branches(self, context: StackContext) -> tuple[Branch, ...]:
        """Return the branches of one layer, in order."""
        if context.stack == "decoder" and context.architecture == "encoder_decoder":
            return ("self", "cross", "ffn")
        return ("self", "ffn")

    def stream(self, context: StackContext) -> Stream:
        """Return the stream of the stack."""
        return Stream()

    def stack(self, context: StackContext) -> StackPlan:
        """Return the plan of a whole stack, by default one question per site."""
        sites = list_sites(context, self.branches(context))
        return StackPlan(
            sites=tuple((site, _checked(self.site(context, site))) for site in sites),
            ends=self.ends(context),
            stream=self.stream(context),
        )

    def prepare(self, model: Any, batches: "Iterable[tuple[Tensor | None, ...]]") -> None:
        """Do what the scheme needs once before step 0, such as profiling; by default nothing.

        `batches` yields the arguments with which `model` is called, the same on every rank. Afterwards rank 0's
        parameters and buffers replace the other ranks', and those that are saved go into checkpoints: a result belongs
        in one of them, changed in place. A model that goes on from a checkpoint, or has updates behind it, is not
        prepared again.
        """

    def advance(self, model: SteppedModel, step: int) -> None:
        """Tell `model` that `step` optimiser updates are done (absolute and idempotent)."""
        model.advance(step)

    def after_update(self, model: Any) -> None:
        """Do what the scheme needs after each optimiser update; by default nothing."""


def undefined(scheme: ResidualScheme, architecture: Architecture) -> str:
    """Return in words what a scheme is defined for, and why not for that architecture."""
    why = f": {scheme.restriction}" if scheme.restriction else ""
    return f"defined for {', '.join(scheme.architectures)}, not {architecture}{why}"


def _checked(plan: Any) -> SitePlan:
    """Return what a scheme answered for a site; raises SchemeError where that is no SitePlan."""
    if not isinstance(plan, SitePlan):
        raise SchemeError(f"site() returned {plan!r}; expected a SitePlan")
    return plan


def list_sites(context: StackContext, branches: tuple[Branch, ...]) -> list[Site]:
    """Return the sites of a stack whose every layer has those branches."""
    width = len(branches)
    return [
        Site(
            stack=context.stack,
            layer=layer,
            kind=kind,
            index=(layer - 1) * width + place + 1,
            first_in_layer=place == 0,
            last_in_layer=place == width - 1,
        )
        for layer in range(1, context.num_layers + 1)
        for place, kind in enumerate(branches)
    ]


def glorot(
    gain: float = 1.0,
    *,
    qk_gain: float = 1.0,
    gate_gain: float = 1.0,
    kind: Literal["xavier_normal", "xavier_uniform"] = "xavier_normal",
) -> dict[Role, Init]:
    """Return Glorot draws of gain `gain` for v, out, fc1 and fc2, with gains of their own for q, k and the gate.

    A gated branch multiplies three matrices; with a gate of gain 1 it stays at the order gain^2, as without a gate.
    """
    draws: dict[Role, Init] = {role: Init(kind, gain) for role in ("v", "out", "fc1", "fc2")}
    draws |= {"q": Init(kind, qk_gain), "k": Init(kind, qk_gain)}
    return draws | {"gate": Init(kind, gate_gain)}


def embedding_init(context: StackContext) -> dict[Role, Init]:
    """Return draws of std d^(-1/2) for embeddings, learned positions and the vocabulary projection."""
    normal = Init("normal", context.d_model**-0.5)
    return {"embedding": normal, "position": normal, "vocabulary": normal}
