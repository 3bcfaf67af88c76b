"""For those who write a residual scheme of their own: what it must hold, checked against what they claim of it.

from deepnet.testing import SchemeCase, check_scheme
"""

from deepnet.errors import SchemeError
from deepnet.testing.scheme_case import SchemeCase, SiteParts, StackParts, gained, glorot_std
from deepnet.testing.scheme_checks import CHECKS, check_scheme

__all__ = [
    "CHECKS",
    "SchemeCase",
    "SchemeError",
    "SiteParts",
    "StackParts",
    "check_scheme",
    "gained",
    "glorot_std",
]
