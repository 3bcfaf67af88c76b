"""NormFormer's head scale and its residual vector."""

import torch


def test_a_scale_of_zero_silences_one_true_head(make_model):
    attention = make_model("normformer").encoder.layers[0].sublayers["self"].branch
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    with torch.no_grad():
        attention.head_scale.factor[1] = 0.0
        before = attention(x)
        attention.v.weight[8:] = torch.randn(8, 16)  # the second head's values
        torch.testing.assert_close(attention(x), before)
        attention.v.weight[:8] = torch.randn(8, 16)
        assert not torch.allclose(attention(x), before)


def test_the_residual_vector_is_the_feed_forward_sites_alone(make_model):
    plain = dict(make_model("normformer").named_parameters())
    scaled = dict(make_model("normformer", {"scale_residual": True}).named_parameters())
    added = sorted(scaled.keys() - plain.keys())
    assert added == [
        f"{stack}.layers.{layer}.sublayers.ffn.residual.skip.factor"
        for stack in ("decoder", "encoder")
        for layer in (0, 1)
    ]
    assert {tuple(scaled[name].shape) for name in added} == {(16,)}


def test_the_residual_vector_starts_at_1(make_model):
    model = make_model("normformer", {"scale_residual": True})
    vectors = [p for name, p in model.named_parameters() if name.endswith("residual.skip.factor")]
    assert len(vectors) == 4
    assert all(torch.equal(vector, torch.ones_like(vector)) for vector in vectors)
