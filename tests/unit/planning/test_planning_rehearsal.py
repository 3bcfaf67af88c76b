"""Passes on tensors without numbers against the same passes on real ones, and FLOPs against a count by hand."""

import pytest
import torch

from deepnet.errors import PlanError
from deepnet.planning.live_bytes import UNCLAIMED, LiveBytes
from deepnet.planning.rehearsal import GRADIENTS, rehearse, without_memory
from deepnet.schemes.catalogue import list_schemes, load_scheme, scheme_class
from deepnet.training.config import OptimizerConfig
from deepnet.training.engine.in_backward import InBackward
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.training.loss import token_loss
from deepnet.transformer.models import Transformer, TransformerConfig

CPU = torch.device("cpu")
SCALARS = 16
"""Bytes of the loss divided, and of the gradient that the backward pass begins with."""
SHAPE = {
    "encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32, "num_heads": 2,
    "vocab_size": 30, "dropout": 0.1,
}  # fmt: skip


def build(scheme: str = "deepnorm", **shape: object) -> Transformer:
    return Transformer(TransformerConfig(**{**SHAPE, **shape}), load_scheme(scheme))


def rehearsed(batch, conditions, *made, **shape):
    with without_memory(CPU) as mode:
        return rehearse(build(*made, **shape), batch, conditions=conditions, mode=mode)


def real(batch, conditions, *made, **shape):
    """Return the most bytes held in real passes, and those held when the loss is known."""
    model, live = build(*made, **shape).train(), LiveBytes()
    live.claim([*model.parameters(), *model.buffers()], "weights")
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    with recomputing(model, conditions.training, blocks=blocks), live:
        with conditions.precision.autocast():
            loss = token_loss(label_smoothing=0.1)(model, batch)
        held = live.held[UNCLAIMED]
        (loss / batch.num_tokens).backward()
    return live.most.total(), held


@pytest.mark.parametrize(
    "scheme", [n for n in list_schemes() if "encoder_decoder" in scheme_class(n).architectures]
)
def test_every_scheme_holds_what_its_real_passes_hold(batch, conditions, scheme):
    most, kept = real(batch, conditions(), scheme)
    found = rehearsed(batch, conditions(), scheme)
    assert sum(found.most.values()) == most
    assert 0 <= found.activations - kept <= SCALARS


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "again",
    [{}, {"recompute": True}, *({"recompute": True, "recompute_segment": n} for n in (2, 0))],
)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"activation": "swiglu", "positions": "rotary"},
        {"positions": "relative", "norm": "rms_norm"},
    ],
)
def test_every_mode_holds_what_its_real_passes_hold(batch, conditions, precision, again, shape):
    under = conditions(precision, **again)
    most, kept = real(batch, under, **shape)
    found = rehearsed(batch, under, **shape)
    assert sum(found.most.values()) == most
    assert 0 <= found.activations - kept <= SCALARS


def test_one_text_is_rehearsed_as_well(batch, conditions):
    lines = type(batch)(batch.source, None, None, batch.source, num_tokens=28, num_source_tokens=28)
    shape = {"architecture": "decoder_only", "encoder_layers": 0}
    most, _ = real(lines, conditions(), **shape)
    assert sum(rehearsed(lines, conditions(), **shape).most.values()) == most


def test_gradients_are_as_many_as_weights_and_there_from_the_second_micro_batch_on(
    batch, conditions
):
    parameters = sum(p.numel() for p in build().parameters()) * 4
    first = rehearsed(batch, conditions())
    later = rehearsed(batch, conditions(accumulates=True))
    assert first.gradients == later.gradients == later.most[GRADIENTS] == parameters
    assert first.most.get(GRADIENTS, 0) < parameters


def test_steps_in_the_backward_pass_hold_no_two_gradients(batch, conditions):
    model, live = build().train(), LiveBytes()
    live.claim([*model.parameters(), *model.buffers()], "weights")
    engine = InBackward(
        model,
        optimizer=OptimizerConfig(name="sgd"),
        precision=Precision("fp32", "cpu"),
        ranks=Ranks(),
    )
    with live:
        engine.add_gradients(
            lambda module: token_loss(label_smoothing=0.1)(module, batch),
            num_tokens=batch.num_tokens,
            sends=True,
        )
    found = rehearsed(batch, conditions(step_in_backward=True))
    norms = 4 * len(found.trained)
    assert 0 <= live.most.total() - sum(found.most.values()) <= norms
    assert found.gradients == max(p.nbytes for p in model.parameters())
    assert set(found.trained) == {name for name, _ in model.named_parameters()}


def test_recompute_keeps_less_and_computes_the_blocks_twice(batch, conditions):
    plain, again = (rehearsed(batch, conditions(recompute=r)) for r in (False, True))
    assert again.activations < plain.activations / 2
    assert again.forward_flops == plain.forward_flops
    vocabulary = 2 * 16 * 29 * 36  # outside of the blocks
    assert again.backward_flops - plain.backward_flops == plain.forward_flops - vocabulary


def test_flops_are_those_counted_by_hand(batch, conditions):
    found = rehearsed(batch, conditions(), encoder_layers=1, decoder_layers=1)
    d, f, source, target = 16, 32, 4 * 7, 4 * 9
    encoder = source * (4 * d * d + 2 * d * f)
    decoder = target * (4 * d * d + 2 * d * f + 2 * d * d) + source * 2 * d * d
    pairs = 4 * (7 * 7 + 9 * 9 + 9 * 7)  # of queries and keys; the hidden ones are computed, too
    weights, attention = 2 * (encoder + decoder + target * d * 29), 2 * 2 * d * pairs
    assert found.forward_flops == weights + attention
    assert found.backward_flops == 2 * found.forward_flops
    assert found.attention_flops == 3 * attention


def test_a_model_that_asks_for_numbers_is_refused():
    with (
        pytest.raises(
            PlanError, match="cannot be planned, as it does not run on tensors without numbers"
        ),
        without_memory(CPU),
    ):
        torch.ones(3).sum().item()
