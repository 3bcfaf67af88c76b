"""What a checkpoint takes on disk, byte for byte where that is tensors."""

from collections.abc import Mapping

from torch import Tensor

from deepnet.bundle import model_tensors
from deepnet.probes.norm_input import NormInputs
from deepnet.tensor_files import file_bytes
from deepnet.training.guard.history import REMEMBERED
from deepnet.transformer.models import Transformer


def checkpoint_files(
    model: Transformer, optimizer: Mapping[str, Tensor], *, averages: bool
) -> dict[str, int]:
    """Return the bytes of each file of tensors in a checkpoint; those of JSON and checksums are few."""
    parameters = dict(model.named_parameters())
    return {
        "model.safetensors": file_bytes(model_tensors(model)),
        "optimizer.safetensors": file_bytes(optimizer),
        **({"ema.safetensors": file_bytes(parameters)} if averages else {}),
        "guard.safetensors": REMEMBERED * 4 * (len(parameters) + len(NormInputs(model).places)),
    }
