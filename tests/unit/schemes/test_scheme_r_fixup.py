"""R-Fixup's traps: what tying does to the zero vocabulary, no biases, and the scalars' own learning rate."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.schemes.r_fixup import Scheme
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.inputs import Inputs


@pytest.mark.parametrize("tying", ["all", "decoder"])
def test_a_tied_vocabulary_is_the_embedding(make_model, tying):
    model = make_model("r_fixup", tie_embeddings=tying, vocab_size=2000, d_model=64)
    assert model.vocabulary.rows is model.target_embedding
    # 128,000 draws: 4 standard errors of the std are 0.8%
    assert model.target_embedding.weight[:-1].std().item() == pytest.approx(64**-0.5, rel=0.008)


def test_an_untied_vocabulary_starts_at_0_and_alone_learns_at_first(make_model, sentences):
    model = make_model("r_fixup", tie_embeddings="none")
    logits = model(*sentences)
    assert not logits.any()
    logits[..., 3].sum().backward()
    learning = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert learning == {"vocabulary.rows.weight"}


def test_there_is_no_bias_and_no_norm(make_model):
    names = [n for n, _ in make_model("r_fixup", activation="swiglu").named_parameters()]
    assert not [n for n in names if n.endswith("bias") or "norm" in n or ".post" in n]


@pytest.mark.parametrize(("options", "lr"), [({}, 0.1), ({"scale_lr": 1.0}, 1.0)])
def test_scalars_have_a_learning_rate_of_their_own(make_model, options, lr):
    for name, parameter, policy in parameter_policies(make_model("r_fixup", options)):
        assert policy.lr == (lr if parameter.shape == (1,) else 1.0), name


@pytest.mark.parametrize(("n", "m", "sites"), [(3, 5, 21), (8, 0, 16), (0, 8, 16)])
def test_the_gains_count_the_sites_of_both_stacks(n, m, sites):
    for row in coefficients(load_scheme("r_fixup"), encoder_layers=n, decoder_layers=m)["sites"]:
        if row["kind"] == "ffn":
            assert row["gain"]["fc1"] == pytest.approx(sites**-0.5, rel=1e-12)
        else:
            assert row["gain"]["q"] == pytest.approx(sites ** (-1 / 6), rel=1e-12)


def test_the_memory_is_not_shifted(make_model, sentences):
    model = make_model("r_fixup")
    cross = model.decoder.layers[0].sublayers["cross"]
    with torch.no_grad():
        cross.residual.shift.fill_(0.7)
        cross.branch.out.weight.normal_()
    x, memory = torch.randn(2, 3, 16).double(), torch.randn(2, 4, 16).double()
    seen = []
    cross.branch.k.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    entered, skip = cross.residual.enter(x)
    cross.branch(entered, Inputs(memory=memory))
    assert torch.equal(entered, x - 0.7)
    assert skip is x
    assert seen[0] is memory


def test_a_rate_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"scale_lr is 0\.0"):
        Scheme(scale_lr=0.0)


def test_scales_start_at_1_and_shifts_at_0(make_model):
    model = make_model("r_fixup")
    scalars = {n: p.item() for n, p in model.named_parameters() if p.shape == (1,)}
    shifts = {value for name, value in scalars.items() if "shift" in name}
    scales = {value for name, value in scalars.items() if "shift" not in name}
    assert (shifts, scales) == ({0.0}, {1.0})
