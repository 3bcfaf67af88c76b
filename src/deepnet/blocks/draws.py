"""Weights of somebody else's branches, drawn as a scheme plans them: by role, not by name."""

from collections.abc import Mapping, Set

import torch
from torch import Tensor, nn

from deepnet.blocks.sites import ResidualSites
from deepnet.errors import ConfigError
from deepnet.schemes.base import Init, Role
from deepnet.transformer.grouped_query import full_draw
from deepnet.transformer.initialize import draw
from deepnet.transformer.residual import Residual

_ATTENTION: frozenset[Role] = frozenset({"q", "k", "v", "out"})
_FEED_FORWARD: frozenset[Role] = frozenset({"fc1", "fc2"})
_ENDS: frozenset[Role] = frozenset({"embedding", "position", "vocabulary"})


@torch.no_grad()
def initialize(
    part: Residual | ResidualSites, weights: Mapping[Role, nn.Linear | nn.Embedding | Tensor]
) -> None:
    """Draw the weights of a site's branch, or of a stack's ends, in place; biases and padding's row become 0.

    A site's branch is q, k, v and out, or fc1 and fc2 (and gate); a stack's ends are any of embedding, position and
    vocabulary. A tensor is a matrix [fan_out, fan_in], such as a third of a fused one: each of q, k and v is drawn with
    its own fans; k and v with fewer rows than q, as full ones. Raises ConfigError where a role is missing, or the part
    plans none.
    """
    inits = part.plan.init if isinstance(part, Residual) else part.plan.ends.init
    _check(part, weights.keys())
    rows = len(_matrix(weights["q"])) if "q" in weights else None
    for role, weight in weights.items():
        if role not in inits:
            raise ConfigError(
                f"this site plans no draw for '{role}'; give it a gain (beta=...) or draw it yourself"
            )
        _fill(weight, full_draw(inits[role], role, _matrix(weight), rows=rows))


def _check(part: Residual | ResidualSites, given: Set[Role]) -> None:
    """Raise ConfigError unless the roles are those of one branch, or of the ends."""
    roles = frozenset(given)
    if isinstance(part, Residual):
        complete = roles in (_ATTENTION, _FEED_FORWARD, _FEED_FORWARD | {"gate"})
        expected = "q, k, v and out of an attention, or fc1, fc2 and perhaps gate"
    else:
        complete = bool(roles) and roles <= _ENDS
        expected = "some of embedding, position and vocabulary"
    if not complete:
        raise ConfigError(f"the roles given are {', '.join(sorted(roles))}; expected {expected}")


def _fill(weight: nn.Linear | nn.Embedding | Tensor, init: Init) -> None:
    # not detach(): torch would refuse to read the caller's view of a fused matrix afterwards
    draw(_matrix(weight).data, init)
    if isinstance(weight, nn.Linear) and weight.bias is not None:
        weight.bias.zero_()
    if isinstance(weight, nn.Embedding) and weight.padding_idx is not None:
        weight.weight[weight.padding_idx] = 0.0


def _matrix(weight: nn.Linear | nn.Embedding | Tensor) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.weight
