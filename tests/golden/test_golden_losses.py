"""Loss curves that only change when behaviour does: 20 updates of each scheme, float64, on one thread.

`python tests/golden/test_golden_losses.py` writes losses.json anew from the code as it is; a change of it needs a
reason in the commit that makes it.
"""

import json
from pathlib import Path

import pytest
import torch

from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.transformer.models import Transformer, TransformerConfig

GOLDEN = Path(__file__).with_name("losses.json")
OPTIONS = {"branchnorm": {"T": 10}, "prores": {"T": 4}}


def losses(name: str) -> list[float]:
    """Return the losses of 20 updates on one fixed batch, dropout on."""
    torch.manual_seed(7)
    scheme = load_scheme(name, OPTIONS.get(name))
    architecture = scheme.architectures[0]
    translates = architecture == "encoder_decoder"
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=0 if architecture == "decoder_only" else 3,
        decoder_layers=0 if architecture == "encoder_only" else 3,
        d_model=16,
        ffn_dim=32,
        num_heads=2,
        vocab_size=30,
    )
    model = Transformer(config, scheme).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    ids = torch.randint(1, 29, (8, 7))
    shifted = torch.cat([ids.new_full((8, 1), 29), ids[:, :-1]], 1)
    batch = (ids, None, shifted) if translates else (shifted,)
    scheme.prepare(model, iter([batch]))
    found = []
    for step in range(20):
        logits, targets = model(*batch), ids.flip(1) if translates else ids
        loss = summed_cross_entropy(logits, targets, label_smoothing=0.1) / ids.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheme.after_update(model)
        scheme.advance(model, step + 1)
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", list_schemes())
def test_the_curve_is_the_golden_one_and_falls(name):
    found = losses(name)
    assert found == pytest.approx(json.loads(GOLDEN.read_text())[name], rel=1e-9)
    assert found[-1] < found[0]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: losses(name) for name in list_schemes()}, indent=1) + "\n")
