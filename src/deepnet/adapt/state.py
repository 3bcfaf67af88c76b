"""The number of updates an adopted model has seen, counted by listening to the optimiser that owns it."""

import weakref
from functools import partial
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from deepnet.anatomy.base import Sited
from deepnet.anatomy.locate import locate
from deepnet.anatomy.rows import UnitRows
from deepnet.errors import AdaptError
from deepnet.schemes.base import ResidualScheme
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.stepping import Stepped


class SchemeState(Stepped):
    """The scheme of an adopted model, `model.deepnet`: its step is saved, its scales follow from the step.

    Any loop advances it: torch calls back after each step of any optimiser, and the one that owns the model's first
    trainable site weight counts. A model with two optimisers is then counted once, a skipped step not at all.
    """

    def __init__(
        self, model: nn.Module, scheme: ResidualScheme, *, kept: bool, ends: EndsConfig
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.kept = kept
        self.ends = ends
        self._model = (model,)  # in a tuple: a parent is no submodule of its child
        self.extra = nn.ModuleDict()
        self.count_updates()
        self.register_state_dict_pre_hook(_refuse_lost_rows)  # type: ignore[no-untyped-call]
        self._listen()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._listen()  # a copy listens for its own optimiser

    @property
    def step(self) -> int:
        """Return the number of updates done."""
        return int(self.scheme_step)

    def stepped(self) -> nn.Module:
        """Return the adopted model."""
        return self._model[0]

    def counts(self, optimizer: Optimizer) -> bool:
        """Return whether a step of that optimiser is an update of this model."""
        watched = self._watched()
        return any(p is watched for group in optimizer.param_groups for p in group["params"])

    def _watched(self) -> nn.Parameter | None:
        layers = (module for module in self._model[0].modules() if isinstance(module, Sited))
        weights = (p for layer in layers for p in layer.parameters() if p.requires_grad)
        return next(weights, None)

    def _listen(self) -> None:
        register_optimizer_step_post_hook(partial(_after_step, weakref.ref(self)))


def _refuse_lost_rows(state: SchemeState, *_: object) -> None:
    """Raise AdaptError where a module was put in since whose rows are not of unit length: it would be read back so."""
    for use in locate(state.stepped()).rows() if state.ends.rows == "unit" else ():
        if not isinstance(use.module, UnitRows):
            raise AdaptError(
                f"the model was given rows of unit length, but its {use.role} is now a {type(use.module).__name__} "
                "without them, and what is saved would be read back with them; resize it before apply_scheme"
            )


def _after_step(listener: weakref.ref[SchemeState], optimizer: Optimizer, *_: object) -> None:
    """Count one update; a hook whose model is gone does nothing, as hooks cannot be removed while they are called."""
    state = listener()
    if state is not None and state.counts(optimizer):
        state.scheme.advance(state, state.step + 1)
