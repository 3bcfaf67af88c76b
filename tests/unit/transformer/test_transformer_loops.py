"""Layers that run several times with the same weights: coefficients, decoding, memory, files, what probes read."""

from collections import Counter

import pytest
import torch
from looped_models import copied, gradients, looped
from torch import nn

from deepnet.bundle import load_bundle, save_bundle
from deepnet.errors import CheckpointError
from deepnet.left_open import as_recorded
from deepnet.probes.place import Place
from deepnet.probes.recorder import Recorder
from deepnet.rebuild import check_shape
from deepnet.testing.scheme_models import example_batch
from deepnet.training.engine.recompute import recomputed
from deepnet.transformer.initialize import initialization_report
from deepnet.transformer.models import TransformerConfig

# What it computes ---------------------------------------------------------------------------------------------------


def test_coefficients_are_those_of_all_layers_that_run_or_of_those_stored():
    def numbers(**shape):
        stack = looped(decoder_layers=0, architecture="encoder_only", **shape).encoder
        site = stack.sites()[0].residual
        return site.skip, site.plan.init["v"].value, len(stack.layers)

    shape = {"encoder_layers": 6, "loops": 3}
    assert numbers(**shape) == (pytest.approx(36**0.25), pytest.approx(144**-0.25), 6)
    stored = numbers(**shape, coefficient_depth="stored")
    assert stored == (pytest.approx(12**0.25), pytest.approx(48**-0.25), 6)


def test_an_encoder_decoder_counts_the_passes_of_both_stacks():
    encoder, decoder = (
        stack.sites()[0].residual.skip for stack in looped(encoder_layers=3, loops=4).stacks()
    )
    assert encoder == pytest.approx(0.81 * (12**4 * 8) ** (1 / 16))
    assert decoder == pytest.approx(24**0.25)


def test_weights_start_with_the_gain_of_all_layers_that_run():
    torch.manual_seed(1)
    model = looped(d_model=64, ffn_dim=256, decoder_layers=0, architecture="encoder_only", loops=9)
    report = {row.role: row for row in initialization_report(model)}
    beta = 144**-0.25
    assert report["v"].expected_std == pytest.approx(beta / 8)
    assert report["q"].expected_std == pytest.approx(1 / 8)
    assert all(row.standard_errors < 5 for row in report.values())


def test_the_parameters_are_those_of_the_stored_layers():
    def names(loops):
        return {name: p.shape for name, p in looped(loops=loops).named_parameters()}

    assert names(3) == names(1)


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res", "mhc", "resi_dual"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_decoding_with_a_cache_is_exact(scheme, positions, sentences):
    model = looped(scheme, positions=positions).eval()
    source, keep, target = sentences
    with torch.no_grad():
        expected = model(source, keep, target)
        cache = model.begin(model.encode(source, keep), keep)
        steps = [model.step(target[:, [t]], t, cache) for t in range(target.shape[1])]
    assert len(cache.layers) == 6
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-12, atol=1e-12)


def test_a_hypothesis_that_is_kept_keeps_what_every_pass_has_of_it(sentences):
    model = looped().eval()
    source, keep, target = sentences
    rows = torch.tensor([2, 0])
    with torch.no_grad():
        expected = model(source[rows], keep[rows], target[rows])[:, -1:]
        cache = model.begin(model.encode(source, keep), keep)
        for t in range(target.shape[1] - 1):
            model.step(target[:, [t]], t, cache)
        cache.select(rows)
        last = target.shape[1] - 1
        found = model.step(target[rows][:, [last]], last, cache)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# How it is made, computed and kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["deepnorm", "mhc", "gpas"])
def test_it_is_made_without_memory_as_in_place(scheme):
    torch.manual_seed(3)
    direct = looped(scheme)
    with torch.device("meta"):
        made = looped(scheme)
    made.to_empty(device="cpu")
    torch.manual_seed(3)
    made.float().reset_parameters()
    made.double()
    for name, tensor in direct.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor), name


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res", "mhc"])
def test_recompute_changes_no_bit_of_its_gradients(scheme):
    model = looped(scheme, dropout=0.1).train()
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    seen = []
    for again in ([], blocks):
        torch.manual_seed(2)
        with recomputed(again):
            seen.append(gradients(model, example_batch("encoder_decoder"), stored=2))
    assert seen[0].keys() == seen[1].keys()
    assert all(torch.equal(seen[1][name], x) for name, x in seen[0].items())


def test_a_bundle_brings_it_back(tmp_path):
    model = looped().float().eval()
    save_bundle(tmp_path / "bundle", model)
    loaded = load_bundle(tmp_path / "bundle").model
    assert (loaded.config.loops, loaded.config.coefficient_depth) == (3, "unrolled")
    batch = example_batch("encoder_decoder")
    assert torch.equal(loaded.eval()(*batch), model(*batch))


@pytest.mark.parametrize("scheme", ["deepnorm", "attn_res"])
def test_a_bundle_of_many_passes_is_brought_back(scheme, tmp_path):
    model = looped(scheme, loops=60).float()
    save_bundle(tmp_path / "bundle", model)
    assert load_bundle(tmp_path / "bundle").model.config.loops == 60


def test_passes_that_a_file_of_that_size_is_not_trusted_with_are_refused():
    model = looped(d_model=4, ffn_dim=4, encoder_layers=50, decoder_layers=50, loops=1)
    config = model.config.model_copy(update={"loops": 1000})
    with pytest.raises(CheckpointError, match="100 layers run 1000 times"):
        check_shape(config, model.state_dict())
    check_shape(config.model_copy(update={"loops": 100}), model.state_dict())


def test_a_shape_that_says_nothing_of_loops_has_none():
    recorded = as_recorded(TransformerConfig, {"encoder_layers": 2, "decoder_layers": 2})
    assert TransformerConfig(**recorded).loops == 1


def test_a_depth_of_coefficients_without_loops_has_no_effect_and_is_refused():
    with pytest.raises(ValueError, match="coefficient_depth = 'stored' has no effect with loops"):
        TransformerConfig(coefficient_depth="stored")


# What is measured ---------------------------------------------------------------------------------------------------


def record_of(model, batch):
    return Recorder(model, lambda m: m(*batch)).measure()


def test_probes_read_a_stored_layer_over_all_its_passes():
    model, batch = looped().eval(), example_batch("encoder_decoder")
    whole = copied(model).eval()
    found, expected = record_of(model, batch), record_of(whole, batch)
    for probe, power in (("norm_input", 2), ("sparsity", 1), ("attention_entropy", 1)):
        for key, row in found[probe].items():
            passes = torch.tensor(expected[probe][key], dtype=torch.float64)
            pooled = passes.pow(power).view(-1, len(row)).mean(0).pow(1 / power)
            torch.testing.assert_close(
                torch.tensor(row, dtype=torch.float64), pooled, rtol=1e-4, atol=1e-6
            )


def test_what_a_layer_returned_is_that_of_its_last_pass():
    model, batch = looped().eval(), example_batch("encoder_decoder")
    first = Recorder(model, lambda m: m(*batch)).first_outputs()
    with torch.no_grad():
        expected = model.encode(batch[0], batch[1])
    torch.testing.assert_close(first[str(Place("encoder", 2))], expected)


def test_every_module_runs_once_per_loop():
    model, calls = looped(), Counter()
    for layer in model.encoder.layers:
        nn.Module.register_forward_hook(layer, lambda module, *_: calls.update([module]))
    model(*example_batch("encoder_decoder"))
    assert list(calls.values()) == [3, 3]
    assert list(calls) == list(model.encoder.layers)
