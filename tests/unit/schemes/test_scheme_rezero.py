"""ReZero: the identity at the start, learned in the order of the gradients, on a float32 stream."""

import torch

from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.models import Transformer, TransformerConfig


def test_one_number_per_layer(make_model):
    names = [n for n, _ in make_model("rezero", decoder_layers=3).named_parameters()]
    assert len([n for n in names if n.endswith(".branch.factor")]) == 2 + 3


def test_a_stack_starts_as_the_identity(make_model, sentences):
    model, (source, _, _) = make_model("rezero"), sentences
    found = model.encoder(source, model.source_embedding, Inputs())
    assert torch.equal(found, model.encoder.entry(model.source_embedding(source), 0))


def test_the_encoder_learns_from_the_second_update_on(make_model, sentences):
    model = make_model("rezero")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales = [p for n, p in model.encoder.named_parameters() if n.endswith("factor")]
    matrix = model.encoder.layers[0].sublayers["ffn"].branch.fc2.weight
    learning = []
    for _ in range(3):
        optimizer.zero_grad()
        model(*sentences).logsumexp(-1).sum().backward()
        learning.append((bool(scales[0].grad.any()), bool(matrix.grad.any())))
        optimizer.step()
    assert learning == [(False, False), (True, False), (True, True)]


def test_the_stream_stays_float32_under_autocast():
    shape = {"encoder_layers": 2, "decoder_layers": 0, "d_model": 16, "ffn_dim": 32, "num_heads": 2}
    config = TransformerConfig(architecture="encoder_only", vocab_size=30, **shape)
    model = Transformer(config, load_scheme("rezero"))
    with torch.autocast("cpu", torch.bfloat16):
        encoded = model.encode(torch.randint(2, 29, (3, 5)))
    assert encoded.dtype == torch.float32
