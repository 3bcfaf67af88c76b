"""What the doctor hands back: a verdict, its risk, the numbers that it rests on, and what to change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.doctor.risk import Verdict, Weights, feature, risk_of, verdict_of
from deepnet.doctor.signs import Name, Sign
from deepnet.doctor.trial import STEPS
from deepnet.training.config import OptimizerConfig, ScheduleConfig

_GENTLER = "lower optimizer.lr, now {lr:g}, or lengthen schedule.warmup_steps, now {warmup:,}"
_REACHED = (
    "take a residual scheme whose gradients reach every layer at this depth (scheme.name; `deepnet schemes NAME` says "
    "what was measured of each), or fewer layers"
)
_ADVICE: dict[Name, Sequence[str]] = {
    "not_finite": (_GENTLER, _REACHED),
    "step_update": (_GENTLER,),
    "loss_regained": (_GENTLER,),
    "above_frequencies": (_REACHED, _GENTLER),
    "layer_gradient": (_REACHED,),
    "token_mean_energy": (_REACHED, _GENTLER),
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A number that was measured, and what it should not pass."""

    what: str
    value: float | None
    """None where it is not finite."""
    limit: float | None = None
    """None where the number is shown without being judged."""

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON has of it, to five digits."""
        rounded = None if self.value is None else float(f"{self.value:.5g}")
        return {"what": self.what, "value": rounded, "limit": self.limit}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Whether a model will train."""

    verdict: Verdict
    risk: float
    """Probability, from 0 to 1, that it does not train."""
    evidence: Sequence[Evidence]
    advice: Sequence[str]
    """What to change, the likeliest to help first; nothing where the model trains."""
    signs: Sequence[Sign]
    """What the risk is made of."""
    trial: Mapping[str, Any]
    """What was trained to find out."""
    risk_from: str
    """How the weights of the risk were found."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "verdict": self.verdict,
            "risk": round(self.risk, 4),
            "evidence": [row.to_dict() for row in self.evidence],
            "advice": list(self.advice),
            "signs": {sign.name: round(sign.excess, 4) for sign in self.signs},
            "trial": dict(self.trial),
            "risk_from": self.risk_from,
        }


def diagnose(
    signs: Sequence[Sign],
    *,
    weights: Weights,
    beside: Sequence[Evidence],
    trial: Mapping[str, Any],
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
) -> Diagnosis:
    """Return what follows from the signs of a trial; `beside` is shown without being judged."""
    risk = risk_of(signs, weights)
    verdict = verdict_of(risk)
    judged = [Evidence(what=s.what, value=finite(s.value), limit=s.limit) for s in signs]
    advice = [] if verdict == "trains" else _advice(signs, weights)
    if verdict == "at risk":
        advice = [*_too_short(trial), *advice]
    numbers = {"lr": optimizer.lr, "warmup": schedule.warmup_steps}
    return Diagnosis(
        verdict=verdict,
        risk=risk,
        evidence=[*judged, *beside],
        advice=[text.format(**numbers) for text in advice],
        signs=signs,
        trial=trial,
        risk_from=weights.how,
    )


def finite(value: float | None) -> float | None:
    """Return a number that is finite, else None."""
    return value if value is not None and math.isfinite(value) else None


def _too_short(trial: Mapping[str, Any]) -> list[str]:
    if trial["updates"] >= STEPS:
        return []
    return [
        f"in a trial of {trial['updates']} updates a slow model cannot be told from one that is stuck; "
        f"give {STEPS}, or a run as long as that"
    ]


def _advice(signs: Sequence[Sign], weights: Weights) -> list[str]:
    """Return what helps against the signs that count, the heaviest first, each once."""
    heavy = sorted(signs, key=lambda s: -weights.signs[s.name] * feature(s.excess))
    counting = [sign for sign in heavy if feature(sign.excess) > 0]
    return list(dict.fromkeys(text for sign in counting for text in _ADVICE[sign.name]))
