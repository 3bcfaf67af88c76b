"""What stands before the first token of a translation: eos where padding would be a row of zeros and nothing else."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet.bundle import load_bundle, save_bundle
from deepnet.schemes.catalogue import load_scheme
from deepnet.seal import SUMS_FILE
from deepnet.transformer.models import Transformer, TransformerConfig

PADDING, EOS = 29, 0
SOURCE = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 0]])
BEGINNING = [PADDING, 6, 7]


def model_of(positions, *, scheme="deepnorm", **shape):
    config = TransformerConfig(
        encoder_layers=6, decoder_layers=6, d_model=48, ffn_dim=96, num_heads=4, vocab_size=30,
        positions=positions, dropout=0.0, **shape,
    )  # fmt: skip
    torch.manual_seed(0)
    return Transformer(config, load_scheme(scheme))


def gradient_norm(model):
    targets = torch.tensor([[6, 7, 0]] * 2)
    logits = model(SOURCE, None, torch.tensor([BEGINNING] * 2))
    cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()


@pytest.mark.parametrize("scheme", ["deepnorm", "post_ln", "pre_ln"])
@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative"])
def test_positions_inside_attention_leave_the_first_gradient_what_added_ones_have(
    positions, scheme
):
    ratio = gradient_norm(model_of(positions, scheme=scheme)) / gradient_norm(
        model_of("sinusoidal", scheme=scheme)
    )
    assert 1 / 3 < ratio < 3


def test_a_norm_at_zero_multiplied_it_by_hundreds():
    zeros = gradient_norm(model_of("rotary", decoder_start="padding"))
    assert zeros > 30 * gradient_norm(model_of("rotary"))


@pytest.mark.parametrize(
    ("positions", "decoder_start", "start"),
    [
        ("rotary", "auto", EOS),
        ("sinusoidal", "auto", PADDING),
        ("learned", "auto", PADDING),
        ("sinusoidal", "eos", EOS),
        ("rotary", "padding", PADDING),
    ],
)
def test_padding_is_read_as_the_start(positions, decoder_start, start):
    model = model_of(positions, decoder_start=decoder_start).double().eval()
    said = model_of(positions, decoder_start="padding").double().eval()
    target = torch.tensor([BEGINNING] * 2)
    read = torch.tensor([[start, *BEGINNING[1:]]] * 2)
    assert torch.equal(model(SOURCE, None, target), said(SOURCE, None, read))


def test_a_cached_step_starts_as_the_whole_sentence_does():
    model = model_of("rotary").double().eval()
    whole = model(SOURCE, None, torch.tensor([BEGINNING] * 2))
    cache = model.begin(model.encode(SOURCE))
    steps = [
        model.step(torch.full((2, 1), token), place, cache) for place, token in enumerate(BEGINNING)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-12, atol=1e-12)


def test_a_bundle_of_before_there_was_a_choice_starts_from_padding(tmp_path):
    model = model_of("rotary", decoder_start="padding").eval()
    save_bundle(tmp_path / "old", model)
    config = tmp_path / "old" / "config.json"
    saved = json.loads(config.read_text())
    del saved["model"]["decoder_start"]
    config.write_text(json.dumps(saved))
    (tmp_path / "old" / SUMS_FILE).unlink()
    target = torch.tensor([BEGINNING] * 2)
    loaded = load_bundle(tmp_path / "old").model
    assert torch.equal(loaded(SOURCE, None, target), model(SOURCE, None, target))
