"""Whether a model will train, told before its run: `trains`, `at risk` or `diverges`, with a risk and its evidence.

The package is callable: `deepnet.doctor(model, batches, loss)` is `deepnet.doctor.of_model.doctor`, and
`deepnet.doctor.examine_recipe(recipe)` does what `deepnet doctor RECIPE` does, `check_depths` what it does with
`--coordinates`.
"""

import sys
from types import ModuleType

from deepnet.doctor.coordinates import check_depths
from deepnet.doctor.diagnosis import Diagnosis
from deepnet.doctor.growth import DepthCheck
from deepnet.doctor.of_model import doctor
from deepnet.doctor.of_recipe import examine_recipe


class _CallableModule(ModuleType):
    """A module that can be called, so that `deepnet.doctor` is the function and the package under one name."""

    __call__ = staticmethod(doctor)


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["DepthCheck", "Diagnosis", "check_depths", "doctor", "examine_recipe"]
