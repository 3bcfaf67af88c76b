"""Pruned models: which layers go, and that what is left computes what it did."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.growth.grow import grow_model
from deepnet.growth.prune import LayerPlace, layer_similarities, most_similar, prune_model


@pytest.fixture
def trained(make_model):
    """Return a function (scheme, **shape) -> a float64 model, moved from where it starts."""

    def make(scheme, **shape):
        model = make_model(scheme, **shape).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    return make


def pruned(model, sentences, kept):
    places = most_similar(model, layer_similarities(model, sentences), kept=kept)
    return places, prune_model(model, places)


def states(model):
    return {name: held for name, held in model.state_dict().items() if held.is_floating_point()}


@pytest.mark.parametrize("method", ["stack", "interleave"])
@pytest.mark.parametrize(
    "scheme", ["pre_ln", "peri_ln", "rezero", "completep", "layernorm_scaling"]
)
def test_grown_then_pruned_is_the_original(trained, sentences, scheme, method):
    model = trained(scheme)
    grown = grow_model(model, encoder_layers=6, decoder_layers=4, method=method).model
    places, small = pruned(grown, sentences, 4)
    new = {
        "stack": {("encoder", 2), ("encoder", 3), ("encoder", 4), ("encoder", 5), ("decoder", 2), ("decoder", 3)},
        "interleave": {("encoder", 1), ("encoder", 2), ("encoder", 4), ("encoder", 5), ("decoder", 1), ("decoder", 3)},
    }  # fmt: skip
    assert {*places} == new[method]
    assert small.config == model.config
    own = states(model)
    for name, held in states(small).items():
        torch.testing.assert_close(held, own[name], rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(small(*sentences), model(*sentences), rtol=0, atol=1e-12)


def test_similarities_are_the_cosines_of_adjacent_outputs(trained, sentences):
    model = trained("deepnorm", encoder_layers=3)
    outputs = []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda _, args, output: outputs.append(output))
    found = layer_similarities(model, sentences)
    assert {*found} == {("encoder", 1), ("encoder", 2), ("decoder", 1)}
    for layer in (1, 2):
        below, here = outputs[layer - 1].detach(), outputs[layer].detach()
        cosine = (below * here).sum(-1) / (below.norm(dim=-1) * here.norm(dim=-1))
        assert found["encoder", layer] == pytest.approx(float(cosine.mean()), rel=1e-9)


def test_the_most_similar_go_first_whatever_the_stack(trained):
    model = trained("pre_ln", encoder_layers=4, decoder_layers=3)
    similar = {
        LayerPlace("encoder", 1): 0.5,
        LayerPlace("encoder", 2): 0.9,
        LayerPlace("encoder", 3): 0.7,
        LayerPlace("decoder", 1): 0.8,
        LayerPlace("decoder", 2): 0.1,
    }
    order = [("encoder", 2), ("decoder", 1), ("encoder", 3), ("encoder", 1), ("decoder", 2)]
    assert most_similar(model, similar, kept=2) == order
    assert most_similar(model, similar, kept=5) == order[:2]
    small = prune_model(model, most_similar(model, similar, kept=4))
    assert [len(stack.layers) for stack in small.stacks()] == [2, 2]
    kept = [layer.sublayers["self"].branch.q.weight for layer in small.encoder.layers]
    old = [layer.sublayers["self"].branch.q.weight for layer in model.encoder.layers]
    assert torch.equal(kept[0], old[0])
    assert torch.equal(kept[1], old[1])


def test_a_pruned_post_norm_model_has_its_weights_and_the_alpha_of_what_is_left(trained):
    model = trained("deepnorm", encoder_layers=4, decoder_layers=4)
    small = prune_model(model, [LayerPlace("encoder", 1), LayerPlace("decoder", 2)])
    for place, origin in enumerate([0, 2, 3]):
        old, new = (
            m.layers[n].state_dict() for m, n in ((model.encoder, origin), (small.encoder, place))
        )
        assert all(torch.equal(new[name], held) for name, held in old.items())
    alpha = small.decoder.layers[0].sublayers["ffn"].residual.skip
    assert alpha == pytest.approx((3 * 3) ** 0.25)


@pytest.mark.parametrize(
    ("kept", "words"),
    [(4, "the model has 4 layers; ask for fewer"), (9, "4 layers"), (1, "expected at least 2")],
)
def test_what_cannot_be_pruned(trained, kept, words):
    model = trained("pre_ln")
    with pytest.raises(ConfigError, match=words):
        most_similar(
            model, {LayerPlace("encoder", 1): 0.5, LayerPlace("decoder", 1): 0.6}, kept=kept
        )
