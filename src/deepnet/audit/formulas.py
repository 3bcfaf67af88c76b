"""The coefficients that were mistaken for DeepNorm's in public code, to say what a wrong number is."""

import math
from collections.abc import Callable, Mapping

from deepnet.audit.stacks import Shape
from deepnet.schemes.base import Role

Start = Callable[[Role, int, int], float]

SKIP_TOLERANCE = 5e-4
"""Relative; 2.828 is 1.5e-4 away from (2 * 32)^(1/4)."""


def alpha_formulas(shape: Shape, layers: int) -> dict[str, float]:
    """Return values of alpha that a stack of so many layers may have been given, by what they are."""
    n, m = shape.encoder_layers, shape.decoder_layers
    found = {
        "1, no scale": 1.0,
        "(2L)^(1/4), of a stack alone": (2 * layers) ** 0.25,
        "(3L)^(1/4), of a decoder with an encoder": (3 * layers) ** 0.25,
        "(2L)^(1/2), the essay's for Adam": (2 * layers) ** 0.5,
        "2.828 = (2 * 32)^(1/4), of 32 layers": 2.828,
    }
    if n and m:
        found["0.81 (N^4 M)^(1/16), of an encoder with a decoder"] = 0.81 * (n**4 * m) ** (1 / 16)
    return found


def gain_formulas(shape: Shape, layers: int, claimed: float) -> dict[str, float]:
    """Return gains that a matrix of a stack of so many layers may have been given, by what they are."""
    n, m = shape.encoder_layers, shape.decoder_layers
    found = {"1, not scaled": 1.0, "the claimed gain": claimed}
    if n and m:
        root = (n**4 * m) ** (1 / 16)
        found["1.15 (N^4 M)^(-1/16), where 0.87 = 1/1.15 is right"] = 1.15 / root
        found["0.87 (N^4 M)^(-1/16), of an encoder with a decoder"] = 0.87 / root
    return found | {
        "(8L)^(+1/4), the sign of the exponent is wrong": (8 * layers) ** 0.25,
        "(8L)^(-1/4), of a stack alone": (8 * layers) ** -0.25,
        "(12L)^(-1/4), of a decoder with an encoder": (12 * layers) ** -0.25,
        "the square root of the claimed gain, as if it were of the variance": math.sqrt(claimed),
        "the square of the claimed gain, scaled twice": claimed**2,
        "the inverse of the claimed gain": 1 / claimed if claimed else math.inf,
    }


def starts() -> dict[str, Start]:
    """Return the std that common initialisations aim at, as functions of role, fan in and fan out."""
    return {
        "Glorot": _glorot,
        "torch.nn.Linear's default": _linear_default,
        "Glorot on packed q, k and v": _packed,
        "N(0, 0.02)": lambda role, fan_in, fan_out: 0.02,
    }


def nearest(value: float, formulas: Mapping[str, float], tolerance: float) -> str | None:
    """Return the first formula within a relative tolerance, or None."""
    for name, number in formulas.items():
        if number > 0 and abs(value / number - 1) <= tolerance:
            return name
    return None


def _glorot(role: Role, fan_in: int, fan_out: int) -> float:
    return math.sqrt(2 / (fan_in + fan_out))


def _linear_default(role: Role, fan_in: int, fan_out: int) -> float:
    """Return the std of U(+-fan_in^(-1/2)), what Kaiming-uniform with a = sqrt(5) comes to."""
    return 1 / math.sqrt(3 * fan_in)


def _packed(role: Role, fan_in: int, fan_out: int) -> float:
    return _glorot(role, fan_in, 3 * fan_out if role in ("q", "k", "v") else fan_out)
