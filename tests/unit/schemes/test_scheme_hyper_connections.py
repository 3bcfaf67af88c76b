"""Hyper-connections start as Pre-LN exactly, and mHC's maps stay what they should be."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.hyper_connections import Scheme

every_kind = pytest.mark.parametrize("maps", ["static", "dynamic", "manifold"])


@every_kind
@pytest.mark.parametrize("streams", [2, 4])
def test_at_the_start_it_is_pre_ln(make_model, sentences, maps, streams):
    model = make_model("hyper_connections", {"maps": maps, "streams": streams})
    plain = make_model("pre_ln")
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.maps." in name for name in unexpected)
    torch.testing.assert_close(model(*sentences), plain(*sentences), rtol=1e-9, atol=1e-9)


@every_kind
def test_the_streams_part_once_it_has_learned(make_model, sentences, maps):
    model = make_model("hyper_connections", {"maps": maps})
    states = []
    model.decoder.layers[-1].register_forward_hook(lambda *call: states.append(call[2]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(*sentences).logsumexp(-1).sum().backward()
        optimizer.step()
    spread = [state.std(0).max().item() for state in states]
    assert spread[0] == pytest.approx(0, abs=1e-9)
    assert spread[1] > 1e-4


def test_mixing_stays_doubly_stochastic_and_weights_positive(make_model):
    model = make_model("hyper_connections", {"maps": "manifold"})
    maps = model.encoder.layers[0].sublayers["self"].residual.extra["maps"]
    with torch.no_grad():
        for parameter in maps.parameters():
            parameter.add_(torch.randn_like(parameter))
    read, write, mix = maps(torch.randn(4, 2, 3, 16, dtype=torch.float64)).split([1, 1, 4], dim=-1)
    assert 0 < read.min() < read.max() < 1
    assert 0 < write.min() < write.max() < 2
    ones = torch.ones(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(mix.sum(0), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(mix.sum(-1), ones.permute(2, 0, 1), rtol=0, atol=0.05)
    assert mix.min() >= 0


def test_autocast_does_not_round_the_streams(make_model, sentences):
    model = make_model("hyper_connections").float()
    states = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda *call: states.append(call[2]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*sentences)
    assert [state.dtype for state in states] == [torch.float32, torch.float32]


@pytest.mark.parametrize("options", [{"streams": 0}, {"streams": 1, "maps": "manifold"}])
def test_too_few_streams_are_refused(options):
    with pytest.raises(ConfigError, match=f"streams is {options['streams']}"):
        Scheme(**options)


@every_kind
def test_each_site_reads_the_stream_after_the_last_one_s(make_model, maps):
    model = make_model("hyper_connections", {"maps": maps, "streams": 3}, decoder_layers=2)
    streams = torch.randn(3, 2, 5, 16, dtype=torch.float64)
    sites = [site for layer in model.decoder.layers for site in layer.sublayers.values()]
    assert len(sites) == 6
    for number, site in enumerate(sites):
        read = site.residual.extra["maps"](streams)[..., 0].mean((1, 2))
        assert read.argmax() == number % 3
