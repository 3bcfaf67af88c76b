"""What an audit came to, for people and for machines."""

from dataclasses import asdict, dataclass
from typing import Any

Measure = float | str | list[float] | None


@dataclass(frozen=True, kw_only=True)
class SiteReport:
    """One residual site: where its norms stand and how its skip and branch are scaled.

    A scale is a number, the least and greatest of a vector, or None where it is not a number per channel.
    """

    where: str
    norm: str
    skip: Measure
    branch: Measure


@dataclass(frozen=True, kw_only=True)
class RoleReport:
    """One matrix, or the rows of one that play a role: its std and the claimed one."""

    where: str
    role: str
    std: float
    expected: float | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One deviation: where, what is wrong, what was measured and what is claimed."""

    where: str
    what: str
    measured: Measure
    expected: Measure


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Everything an audit located, found and could not tell.

    Notes are differences that leave the claimed function what it is, or nearly: their sizes are in them.
    """

    sites: list[SiteReport]
    roles: list[RoleReport]
    findings: list[Finding]
    notes: list[Finding]
    not_located: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return asdict(self)
