"""T-Fixup's traps with tied embeddings."""

import pytest

from deepnet.errors import ConfigError

SIZES = {"vocab_size": 2000, "d_model": 64}


def _std(model, stack, role):
    (weight,) = (w for w in model.role_weights() if (w.stack, w.role) == (stack, role))
    return weight.parameter[:-1].std().item()


def test_one_matrix_cannot_have_the_factors_of_two_depths(make_model):
    with pytest.raises(ConfigError, match="set it to 'decoder' or 'none'"):
        make_model("t_fixup", encoder_layers=1, decoder_layers=2)


def test_a_tied_vocabulary_is_scaled_and_an_untied_one_is_not(make_model):
    tied = make_model("t_fixup", tie_embeddings="decoder", encoder_layers=1, **SIZES)
    # 128,000 draws: 4 standard errors of the std are 0.8%
    assert _std(tied, "encoder", "embedding") == pytest.approx((9 * 64**2) ** -0.25, rel=0.008)
    assert _std(tied, "decoder", "embedding") == pytest.approx((18 * 64**2) ** -0.25, rel=0.008)
    assert tied.vocabulary.rows is tied.target_embedding
    untied = make_model("t_fixup", tie_embeddings="none", **SIZES)
    assert _std(untied, "decoder", "embedding") == pytest.approx((18 * 64**2) ** -0.25, rel=0.008)
    assert _std(untied, "decoder", "vocabulary") == pytest.approx(64**-0.5, rel=0.008)


def test_there_is_no_norm(make_model):
    vectors = [n for n, p in make_model("t_fixup").named_parameters() if p.dim() == 1]
    assert all(n.endswith("bias") and ".branch." in n for n in vectors)
