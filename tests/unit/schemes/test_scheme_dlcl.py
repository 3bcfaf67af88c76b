"""DLCL: where its weights start, what it keeps for the backward pass, and that no state stays behind."""

import pytest
import torch
from recomputing import check_recompute

from deepnet.transformer.inputs import Inputs

both = pytest.mark.parametrize("placement", ["pre", "post"])


def _columns(stack):
    extras = [
        sublayer.residual.extra for layer in stack.layers for sublayer in layer.sublayers.values()
    ]
    found = [extra[name] for name in ("embedding", "column") for extra in extras if name in extra]
    return [column.weight for column in found]


def test_each_layer_starts_from_the_mean_of_what_is_below(make_model):
    columns = _columns(make_model("dlcl", encoder_layers=4).encoder)
    assert len(columns) == 5
    for row in range(5):
        weights = [columns[k][row - k].item() for k in range(row + 1)]
        assert weights == pytest.approx([1 / (row + 1)] * (row + 1), rel=1e-6)
    assert [column[5 - k :].abs().sum().item() for k, column in enumerate(columns)] == [0.0] * 5


@both
def test_no_call_leaves_anything_behind(make_model, sentences, placement):
    model = make_model("dlcl", {"placement": placement})
    first = model(*sentences)
    with pytest.raises(RuntimeError):  # a pass that fails in the middle
        model(sentences[0], sentences[1][:1].expand(7, 5), sentences[2])
    assert torch.equal(model(*sentences), first)


@both
def test_recompute_gives_the_same_gradients(make_model, sentences, placement):
    model = make_model("dlcl", {"placement": placement})
    check_recompute(model, sentences)


@both
def test_what_the_backward_pass_keeps_grows_linearly_with_depth(make_model, placement):
    def kept(layers):
        model = make_model("dlcl", {"placement": placement}, encoder_layers=layers)
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = (
                tensor  # held, so that no address recurs
            )
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            state = model.encoder.stream.open(torch.randn(4, 8, 16, dtype=torch.float64))
            for layer in model.encoder.layers:
                state = layer(state, Inputs())
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    shallow, middle, deep = kept(8), kept(16), kept(24)
    assert deep - middle == pytest.approx(middle - shallow, rel=0.05)
