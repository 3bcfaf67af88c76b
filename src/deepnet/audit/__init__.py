"""What a PyTorch Transformer computes, measured on the model itself and held against the scheme it claims.

The package is callable: `deepnet.audit(model, claims="deepnorm")` is `deepnet.audit.examine.audit`.
"""

import sys
from types import ModuleType

from deepnet.audit.examine import audit
from deepnet.audit.report import AuditReport


class _CallableModule(ModuleType):
    """A module that can be called, so that `deepnet.audit` is the function and the package under one name."""

    __call__ = staticmethod(audit)


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["AuditReport", "audit"]
