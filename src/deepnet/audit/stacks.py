"""Sites put into stacks, which are one stream, and layers, which end where a kind of branch comes again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from deepnet.audit.attentions import Attention
from deepnet.audit.flow import Flow
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.sites import MeasuredSite, Norms, events_after
from deepnet.audit.tape import Value
from deepnet.schemes.base import Architecture

Kind = Literal["self", "cross", "merged", "ffn", "parallel", "other"]
Tying = Literal["all", "decoder", "none"]


@dataclass(frozen=True)
class LocatedSite:
    """A measured site with its place."""

    measured: MeasuredSite
    kind: Kind
    layer: int
    norms: Norms
    """The measured ones, without a stack's final norm."""


@dataclass(frozen=True)
class LocatedStack:
    """The sites of one stream, in order."""

    name: str
    sites: list[LocatedSite]
    final_norm: bool
    tables: frozenset[str]
    """Names of the embeddings that its stream is looked up in."""

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return self.sites[-1].layer


@dataclass(frozen=True)
class Shape:
    """What a scheme's coefficients may depend on; None where it could not be told."""

    architecture: Architecture | None
    encoder_layers: int
    decoder_layers: int
    d_model: int
    ffn_dim: int
    num_heads: int
    tying: Tying
    """Which of the embeddings and the vocabulary projection show the same memory."""


def locate_stacks(
    flow: Flow, sites: list[MeasuredSite], matrices: list[RoleMatrix], attentions: list[Attention]
) -> list[LocatedStack]:
    """Return the stacks of a run, the encoder first."""
    chains: list[list[MeasuredSite]] = []
    for site in sites:
        before = set(_nearest_sums(flow, site.sum.fork))
        home = [chain for chain in chains if any(one.sum.output in before for one in chain)]
        home[0].append(site) if home else chains.append([site])
    kinds = {site: _kind(site, matrices, attentions, flow) for site in sites}
    names = _stack_names(chains, kinds, attentions)
    stacks = [_stack(flow, n, chain, kinds) for n, chain in zip(names, chains, strict=True)]
    return sorted(stacks, key=lambda stack: stack.name != "encoder")


def shape_of(
    stacks: list[LocatedStack], matrices: list[RoleMatrix], attentions: list[Attention]
) -> Shape:
    """Return the sizes of a model from its located stacks."""
    layers = {stack.name: stack.num_layers for stack in stacks}
    n, m = layers.get("encoder", 0), layers.get("decoder", 0)
    names: dict[tuple[str, ...], Architecture] = {
        ("decoder", "encoder"): "encoder_decoder",
        ("encoder",): "encoder_only",
        ("decoder",): "decoder_only",
    }
    width = stacks[0].sites[0].measured.sum.output.width if stacks else 0
    inner = [matrix.weight.shape[0] for matrix in matrices if matrix.role == "fc1"]
    sizes = [attention.head_size for attention in attentions]
    return Shape(
        architecture=names.get(tuple(sorted(layers))),
        encoder_layers=n,
        decoder_layers=m,
        d_model=width,
        ffn_dim=inner[0] if inner else 0,
        num_heads=width // sizes[0] if sizes else 1,
        tying=_tying(stacks, matrices),
    )


def _tying(stacks: list[LocatedStack], matrices: list[RoleMatrix]) -> Tying:
    """Return which stacks' embeddings the vocabulary projection has the rows of."""
    tables = {matrix.parameter for matrix in matrices if matrix.role == "embedding"}
    shared = {m.parameter for m in matrices if m.role == "vocabulary"} & tables
    if not shared:
        return "none"
    return "all" if all(shared & (stack.tables or tables) for stack in stacks) else "decoder"


def _nearest_sums(flow: Flow, value: Value) -> Iterator[Value]:
    """Yield the residual additions a value is computed from, without going beyond one."""
    seen, waiting = set(), [value]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in flow.sums:
            yield current
        elif current.made_by is not None:
            waiting += current.made_by.inputs


def _kind(
    site: MeasuredSite, matrices: list[RoleMatrix], attentions: list[Attention], flow: Flow
) -> Kind:
    own = [matrix for matrix in matrices if matrix.site is site]
    roles = {matrix.role for matrix in own}
    if {"out", "fc2"} <= roles:
        return "parallel"
    if "fc2" in roles:
        return "ffn"
    before = {
        value for m in own if m.role == "out" and m.linear for value in flow.of(m.linear.entered)
    }
    mixed = [attention for attention in attentions if attention.output in before]
    if not mixed:
        return "other"
    if len(before) > 1:
        return "merged"
    return "cross" if mixed[0].crossed else "self"


def _stack_names(
    chains: list[list[MeasuredSite]], kinds: dict[MeasuredSite, Kind], attentions: list[Attention]
) -> list[str]:
    crossing = [any(kinds[site] in ("cross", "merged") for site in chain) for chain in chains]
    if len(chains) == 1:
        causal = bool(attentions) and all(attention.causal for attention in attentions)
        return ["decoder" if causal else "encoder"]
    if len(chains) == 2 and sum(crossing) == 1:
        return ["decoder" if crosses else "encoder" for crosses in crossing]
    return [f"stack {index + 1}" for index in range(len(chains))]


def _stack(
    flow: Flow, name: str, chain: list[MeasuredSite], kinds: dict[MeasuredSite, Kind]
) -> LocatedStack:
    sites: list[LocatedSite] = []
    layer, taken = 1, set[Kind]()
    for site in chain:
        if kinds[site] in taken:
            layer, taken = layer + 1, set()
        taken.add(kinds[site])
        sites.append(LocatedSite(site, kinds[site], layer, site.norms))
    final = _ends_with_final_norm(flow, sites)
    if final:
        last = sites[-1]
        sites[-1] = replace(last, norms=replace(last.norms, post=False))
    return LocatedStack(name, sites, final, _tables(flow, chain[0].sum.fork))


def _tables(flow: Flow, start: Value) -> frozenset[str]:
    """Return the names of the embeddings whose rows a stream starts as."""
    rows = (flow.embeddings[value] for value in flow.origins(start) if value in flow.embeddings)
    return frozenset(name for table in rows if (name := flow.learned(table)) is not None)


def _ends_with_final_norm(flow: Flow, sites: list[LocatedSite]) -> bool:
    """Return whether the norm after the last site is the stack's own: the site before it has none like it."""
    if events_after(flow, sites[-1].measured.sum.output) != {"norm"}:
        return False
    return len(sites) > 1 and not sites[-2].norms.post
