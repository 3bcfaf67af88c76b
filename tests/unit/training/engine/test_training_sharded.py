"""What the sharded engine refuses, and what it does on one process; two processes: tests/properties."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.probing import Probing
from deepnet.transformer.models import Transformer, TransformerConfig


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": {"name": "lamb"}}, "optimizer.name = 'lamb', which measures whole"),
        ({"optimizer": {"name": "adafactor"}}, "optimizer.name = 'adafactor', which measures"),
        ({"optimizer": {"name": "muon"}}, "optimizer.name = 'muon', which orthogonalises whole"),
        ({"precision": Precision("fp16", "cpu")}, "training.precision = 'fp16'"),
        ({"offload": True}, "training.offload on a CPU"),
        ({"probing": Probing(1, lambda *_, **__: None)}, "probes.every = 0"),
    ],
)
def test_what_parts_of_matrices_cannot_do_is_refused_in_one_line(toy, given, message):
    with pytest.raises(ConfigError, match=message) as error:
        toy.train(engine="sharded", **given)
    assert "training.engine = 'sharded'" in str(error.value)
    assert "\n" not in str(error.value)


def test_offload_without_the_sharded_engine_has_no_effect_and_is_refused():
    with pytest.raises(ValueError, match="offload has no effect with engine = 'auto'"):
        TrainingConfig(max_steps=1, offload=True)


def test_one_process_trains_in_parts_what_it_trains_whole_with_dropout_and_recompute(toy):
    runs = []
    for engine in ("auto", "sharded"):
        model = toy.model(dropout=0.3)
        given = {"engine": engine, "recompute": True, "blocks": [model[0], model[3]]}
        _, _, run = toy.train(engine, model=model, **given)
        runs.append([(row["loss"], row["gradient_norm"]) for row in toy.records(run)])
    whole, parts = map(torch.tensor, runs)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=0)


def transformer(loops):
    """Return a model with maps between streams, which are tables that are no matrices."""
    torch.manual_seed(0)
    shape = {"d_model": 8, "ffn_dim": 16, "num_heads": 2, "vocab_size": 13, "loops": loops}
    layers = {1: (1, 1), 2: (2, 4)}[loops]  # as many sites to a pass as there are streams, or twice
    config = TransformerConfig(encoder_layers=layers[0], decoder_layers=layers[1], **shape)
    return Transformer(config, load_scheme("hyper_connections", {}))


def decoded(model, ids):
    """Return a number of two decoding steps, which call parts of the model."""
    cache = model.begin(model.encode(ids))
    first = model.step(ids[:, :1], 0, cache)
    return (first + model.step(ids[:, 1:2], 1, cache)).float().square().mean().item()


@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_transformer_in_parts_trains_and_decodes_as_a_whole_one_in_any_precision(
    toy, name, loops
):
    precision = Precision(name, "cpu")
    ids = torch.randint(12, (6, 5), generator=torch.Generator().manual_seed(1))

    def validate(model, step):
        with precision.autocast():
            return {"loss": decoded(model, ids)}

    runs = []
    for engine in ("auto", "sharded"):
        model = transformer(loops)
        _, _, run = toy.train(
            engine,
            model=model,
            loader=ListedUpdates([ListedUpdate((ids,), 30)]),
            loss=lambda model, ids: model(ids, None, ids).float().square().sum(),
            blocks=[layer for stack in model.stacks() for layer in stack.layers],
            precision=precision,
            engine=engine,
            # else the gradient of a key's bias, which is rounding, is a step
            optimizer={"eps": 1e-4},
            max_steps=4,
            validate=validate,
            validate_every=2,
        )
        keys = ("loss", "gradient_norm", "validation_loss")
        runs.append([row[key] for row in toy.records(run) for key in keys if key in row])
    assert runs[1] == pytest.approx(runs[0], rel=1e-6)
