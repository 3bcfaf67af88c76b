"""The type of the matrix products: float32, or a 16-bit type under autocast with the weights kept in float32."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from deepnet.errors import ConfigError
from deepnet.training.config import PrecisionName

_NARROWEST_FOR_BF16_ON_CPU = 512  # below it, casting costs more than the faster products save


@dataclass(frozen=True)
class Precision:
    """A resolved precision on one device."""

    name: Literal["fp32", "bf16", "fp16"]
    device_type: str

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        dtype = torch.float16 if self.name == "fp16" else torch.bfloat16
        return torch.autocast(self.device_type, dtype=dtype, enabled=self.name != "fp32")

    def scaler(self) -> torch.amp.GradScaler:
        """Return the loss scaler that fp16 needs, and one that does nothing for the others."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def resolve_precision(name: PrecisionName, *, device: torch.device, width: int = 0) -> Precision:
    """Resolve `auto` for a device and a model of that width (d_model); raises ConfigError where the device cannot.

    auto: on CUDA bf16 where the device has it; on a CPU bf16 from width 512 on if it multiplies bf16 in hardware.
    """
    if name == "fp16" and device.type == "cpu":
        raise ConfigError(
            "precision 'fp16' needs a GPU: CPUs have no fast fp16 products; use 'bf16', 'fp32' or 'auto', "
            "and resume a run that was begun in fp16 on a GPU"
        )
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            "precision 'bf16' is not possible on this GPU; use 'fp16', 'fp32' or 'auto', and resume a run "
            "that was begun in bf16 on a device that has it"
        )
    if name == "auto":
        name = "bf16" if _bf16_pays(device, width) else "fp32"
    return Precision(name, device.type)


def reason_for_auto(*, device: torch.device, width: int) -> str:
    """Say why `auto` is resolved as it is for a device and a model of that width."""
    if device.type == "cpu" and width < _NARROWEST_FOR_BF16_ON_CPU:
        return (
            f"below d_model {_NARROWEST_FOR_BF16_ON_CPU} casts cost a CPU more than products save"
        )
    what = "GPU" if device.type == "cuda" else "CPU"
    return f"this {what} {'has' if _bf16_pays(device, width) else 'lacks'} products in bf16"


def finished_precision(recorded: str, *, device: torch.device, width: int) -> Precision:
    """Return in which precision a finished model runs that was trained in the `recorded` one.

    The same, where the device has it and is not slower for it (bf16 for fp16 on such a CPU); else float32.
    """
    if recorded == "fp16" and device.type == "cuda":
        return Precision("fp16", device.type)
    return resolve_precision("fp32" if recorded == "fp32" else "auto", device=device, width=width)


def _bf16_pays(device: torch.device, width: int) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or width < _NARROWEST_FOR_BF16_ON_CPU:
        return False
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "sve_bf16"))
