"""Findings that are none: a factor that is not the claimed one where the others of its chain make up for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from deepnet.audit.attentions import Attention
from deepnet.audit.chains import CHAIN_OF, Branch, ChainName, agree, branches
from deepnet.audit.check_weights import NOTABLE, WeightFinding
from deepnet.audit.claims import Claim
from deepnet.audit.flow import Flow
from deepnet.audit.following import Followed, follow
from deepnet.audit.report import Finding
from deepnet.audit.roles import RoleMatrix

_MADE_UP = (
    "and what multiplies it makes up for that: the function is the claimed one, but an update of one size is another "
    "part of these weights"
)


@dataclass(eq=False)
class Equivalence:
    """A claim's sites followed along the stream, and which chains of theirs are the claimed ones as a whole."""

    claim: Claim
    followed: list[Followed]
    branches: list[Branch]
    weights: list[WeightFinding]
    _whole: dict[tuple[str, ChainName], bool] = field(default_factory=dict)

    def excuses(self, kind: str, *chains: ChainName) -> bool:
        """Return whether weights that are not the claimed ones make up for another factor of these chains."""
        off = {(one.kind, CHAIN_OF.get(one.role)) for one in self.weights}
        return all((kind, chain) in off and self._is_whole(kind, chain) for chain in chains)

    def is_too_little_to_tell(self, one: Followed) -> bool:
        """Return whether a site's scales are off by no more than weights could make up for unseen, and may have."""
        return (
            one.off is not None
            and abs(one.off - 1) <= NOTABLE
            and self._is_whole(one.site.kind, "value")
        )

    def split(self) -> tuple[list[Finding], list[Finding]]:
        """Return the findings of the weights, and the notes on those that something makes up for."""
        found: list[Finding] = []
        notes: list[Finding] = []
        for one in self.weights:
            chain = CHAIN_OF.get(one.role)
            if chain is not None and self._is_whole(one.kind, chain):
                what = f"the std of {one.role} is not the claimed one, {_MADE_UP}"
                notes.append(replace(one.finding, what=what))
            else:
                found.append(one.finding)
        return found, notes

    def of_kind(self, kind: str) -> Iterator[Branch]:
        """Yield the branches of one kind."""
        return (branch for branch in self.branches if branch.followed.site.kind == kind)

    def _is_whole(self, kind: str, chain: ChainName) -> bool:
        if (kind, chain) not in self._whole:
            own = list(self.of_kind(kind))
            products = [one.value() if chain == "value" else one.score() for one in own]
            self._whole[kind, chain] = agree(products)
        return self._whole[kind, chain]


def equivalence(
    claim: Claim,
    flow: Flow,
    matrices: list[RoleMatrix],
    attentions: list[Attention],
    weights: list[WeightFinding],
) -> Equivalence:
    """Return a claim's sites and branches, with what was found of their weights alone."""
    followed = follow(claim, flow, matrices)
    return Equivalence(
        claim, followed, list(branches(flow, followed, matrices, attentions)), weights
    )
