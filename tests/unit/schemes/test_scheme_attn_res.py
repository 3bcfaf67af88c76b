"""Attention residuals start as Pre-LN, count the embedding once, and keep what was added once."""

import equations
import pytest
import torch
from recomputing import check_recompute

from deepnet.errors import ConfigError
from deepnet.schemes.attn_res import Scheme
from deepnet.testing.scheme_case import StackParts
from deepnet.transformer.inputs import Inputs

forms = pytest.mark.parametrize("block", [1, 3, 4, 100], ids=lambda block: f"block {block}")


def _as_pre_ln(make_model, model, **shape):
    """Return Pre-LN with the same weights."""
    plain = make_model("pre_ln", **shape)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.depth." in name or ".ends.merge." in name for name in unexpected)
    return plain


@forms
def test_at_the_start_it_is_pre_ln_up_to_eps(make_model, sentences, block):
    """The bound is SCHEMES-2026's, found there for eps 1e-6; with the eps a thousand times smaller so is the rest."""
    for eps, bound in ((1e-6, 3e-5), (1e-9, 3e-8)):
        shape = {"encoder_layers": 6, "decoder_layers": 6, "norm_eps": eps}
        model = make_model("attn_res", {"block_sites": block}, **shape)
        plain = _as_pre_ln(make_model, model, **shape)
        difference = (model(*sentences) - plain(*sentences)).abs().max().item()
        assert 0 < difference < 3 * bound


def test_an_embedding_that_counts_twice_is_another_function(make_model):
    """The figure of the paper starts the blocks with the embedding and appends the open block, embedding included."""
    model = make_model("attn_res", {"block_sites": 2}, encoder_layers=4)
    stack, x = model.encoder, torch.randn(2, 3, 16, dtype=torch.float64)
    parts = StackParts.of(stack, Inputs(), model.config)

    def twice(x):
        full, still_open = [x], x
        for number, site in enumerate(parts.sites, 1):
            h = equations.attend(site.residual.extra["depth"], [*full, still_open])
            still_open = still_open + site.f(site.residual.pre(h))
            if number % 2 == 0:
                full, still_open = [*full, still_open], torch.zeros_like(x)
        return stack.ends.final(equations.attend(stack.ends.merge, full))

    once = equations.attn_res(2)(x, parts)
    assert (twice(x) - once).abs().max() > 0.1
    assert (_run(stack, x) - once).abs().max() < 1e-12


def _run(stack, x):
    state = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, Inputs())
    return stack.stream.close(state, stack.ends)


@forms
def test_any_queries_and_gains_compute_the_equation(make_model, block):
    model = make_model("attn_res", {"block_sites": block}, encoder_layers=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".query", ".gain")):
                parameter.normal_()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    parts = StackParts.of(model.encoder, Inputs(), model.config)
    expected = equations.attn_res(block)(x, parts)
    torch.testing.assert_close(_run(model.encoder, x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("block", "held"), [(1, 13), (3, 5), (5, 4), (100, 2)])
def test_the_state_holds_a_tensor_per_block_and_the_embedding(make_model, block, held):
    """12 sites; of blocks of 5 the last has 2."""
    stack = make_model("attn_res", {"block_sites": block}, encoder_layers=6).encoder
    state = stack.stream.open(torch.randn(1, 2, 16, dtype=torch.float64))
    for layer in stack.layers:
        state = layer(state, Inputs())
    assert len(state) == held


def test_a_probe_sees_the_sum_of_all_that_was_added(make_model):
    stack = make_model("attn_res", {"block_sites": 3}).encoder
    added = [torch.randn(2, 3, 16) for _ in range(4)]
    torch.testing.assert_close(stack.stream.peek(tuple(added)), sum(added))


def test_what_a_branch_returns_in_bf16_is_kept_in_the_type_of_the_stream(make_model, sentences):
    model, states = make_model("attn_res").float(), []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda *call: states.append(call[2]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*sentences)
    assert {tensor.dtype for state in states for tensor in state} == {torch.float32}


def test_recompute_gives_the_same_gradients(make_model, sentences):
    model = make_model("attn_res", {"block_sites": 2})
    check_recompute(model, sentences)


def test_what_the_backward_pass_keeps_grows_linearly_with_depth(make_model):
    def kept(layers):
        stack = make_model("attn_res", encoder_layers=layers).encoder
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor  # held: no address recurs
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            state = stack.stream.open(torch.randn(4, 8, 16, dtype=torch.float64))
            for layer in stack.layers:
                state = layer(state, Inputs())
        for tensor in state:  # what is computed again needs them
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    shallow, middle, deep = kept(8), kept(16), kept(24)
    assert deep - middle == pytest.approx(middle - shallow, rel=0.05)


def test_blocks_without_sites_are_refused():
    with pytest.raises(ConfigError, match="block_sites is 0"):
        Scheme(block_sites=0)
