"""B2T in an encoder, whose layers have two sites, and its initialisation apart from its connection."""

import torch

from deepnet.transformer.inputs import Inputs


def test_an_encoder_layer_adds_its_input_before_the_last_norm(make_model):
    model = make_model("b2t")
    u = torch.randn(2, 3, 16, dtype=torch.float64)
    layer = model.encoder.layers[1]
    attention, ffn = layer.sublayers["self"], layer.sublayers["ffn"]
    a = attention.residual.post(u + attention.branch(u))
    expected = ffn.residual.post(u + a + ffn.branch(a))
    x, _ = layer((u, torch.zeros_like(u)), Inputs())
    torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)


def test_the_connection_alone_leaves_the_draws_alone(make_model):
    torch.manual_seed(3)
    plain = make_model("b2t").state_dict()
    torch.manual_seed(3)
    rescaled = make_model("b2t", {"rescale": True}).state_dict()
    torch.manual_seed(3)
    post_ln = make_model("post_ln").state_dict()
    name = "encoder.layers.0.sublayers.self.branch.q.weight"
    assert torch.equal(plain[name], post_ln[name])
    torch.testing.assert_close(rescaled[name], plain[name] / 2**0.5)
    assert torch.equal(rescaled["target_embedding.weight"], plain["target_embedding.weight"])
