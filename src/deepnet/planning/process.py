"""What this process holds before a run: Python, torch, and what of torch an update loads when it is first computed."""

import torch

from deepnet.data.objectives import Batch
from deepnet.planning.machine import held_bytes
from deepnet.planning.rehearsal import Conditions, failures_told
from deepnet.planning.timing import Trainee
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

_SMALL = TransformerConfig(
    encoder_layers=1, decoder_layers=1, d_model=8, ffn_dim=8, num_heads=1, vocab_size=4
)


def process_bytes(conditions: Conditions) -> int:
    """Return what this process holds once a model of next to nothing has taken an update, where that is main memory.

    Raises PlanError where that fails.
    """
    if conditions.device.type == "cuda":
        return 0
    ids = torch.zeros(1, 2, dtype=torch.int64)
    batch = Batch(ids, ids == 0, ids, ids, num_tokens=2, num_source_tokens=2)
    with failures_told("a model of next to nothing takes no update"):
        model = Transformer(_SMALL, load_scheme("post_ln"))
        Trainee(model, batch, conditions).update()
    return held_bytes()
