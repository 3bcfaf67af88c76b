"""The position-wise branch: two matrices and an activation, or three where it is gated."""

from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.schemes.base import Role, Site, SitePlan
from deepnet.transformer.cache import LayerCache
from deepnet.transformer.dropout import dropout
from deepnet.transformer.inputs import NOTHING, Inputs
from deepnet.transformer.residual import build_norm, build_shift, reset_shift
from deepnet.transformer.scales import ScaleBuilder, scaled

Activation = Literal["relu", "gelu", "swiglu"]


class FeedForward(nn.Module):
    """fc2(activation(fc1(x))), or fc2(silu(gate(x)) * fc1(x)) for SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(
        self,
        d_model: int,
        ffn_dim: int,
        *,
        activation: Activation,
        plan: SitePlan,
        site: Site,
        dropout: float,
        scales: ScaleBuilder,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.fc1 = nn.Linear(d_model, ffn_dim, bias=plan.bias)
        self.gate = nn.Linear(d_model, ffn_dim, bias=plan.bias) if activation == "swiglu" else None
        self.fc2 = nn.Linear(ffn_dim, d_model, bias=plan.bias)
        self.activation_norm = build_norm(plan.inner_norms.get("activation"), ffn_dim)
        self.preactivation_scale = self.gate_scale = None
        if plan.preactivation_scale:
            make = partial(scales.make, plan.preactivation_scale, width=ffn_dim, site=site)
            self.preactivation_scale = make(use="preactivation")
            self.gate_scale = make(use="gate") if self.gate else None
        self.shifts = plan.shifts
        self.preactivation_shift = build_shift(plan.shifts.get("preactivation"))
        self.activation_shift = build_shift(plan.shifts.get("activation"))

    def reset_parameters(self) -> None:
        """Set the shifts to their start."""
        reset_shift(self.preactivation_shift, self.shifts.get("preactivation"))
        reset_shift(self.activation_shift, self.shifts.get("activation"))

    def forward(
        self, x: Tensor, inputs: Inputs = NOTHING, cache: LayerCache | None = None
    ) -> Tensor:
        """Return [B, T, D] from `x` [B, T, D] alone."""
        y = scaled(self.fc1(x), self.preactivation_scale)
        if self.preactivation_shift is not None:
            y = y - self.preactivation_shift
        y = self.activate(y, x)
        if self.activation_shift is not None:
            y = y - self.activation_shift
        y = dropout(y, self.dropout, training=self.training)
        if self.activation_norm is not None:
            y = self.activation_norm(y)
        out: Tensor = self.fc2(y)
        return out

    def roles(self) -> dict[Role, nn.Linear]:
        """Return the linear map of each role, the one that returns the branch's output last."""
        gate: dict[Role, nn.Linear] = {} if self.gate is None else {"gate": self.gate}
        return {"fc1": self.fc1, **gate, "fc2": self.fc2}

    def activate(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the activations [B, T, F] from the pre-activations `y` [B, T, F] of the input `x` [B, T, D]."""
        if self.gate is not None:
            return F.silu(scaled(self.gate(x), self.gate_scale)) * y
        return F.relu(y) if self.activation == "relu" else F.gelu(y)
