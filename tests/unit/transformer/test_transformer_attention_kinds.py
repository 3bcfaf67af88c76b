"""Every kind of attention and of positions against a formula of its own, and what none of them may change.

A row says the model and, one query and one key at a time, what is added to their score; the heads that share a key; by
which angle a pair of channels is turned.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypotheses import check_cached_hypotheses
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import deepnet
from deepnet.bundle import load_bundle, save_bundle
from deepnet.errors import ConfigError
from deepnet.probes.place import parameter_places
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import load_scheme
from deepnet.theory.live_model import branch_matrices
from deepnet.training.engine.recompute import recomputed
from deepnet.transformer.initialize import initialization_report, parameter_policies
from deepnet.transformer.inputs import query_type
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.positions import base
from deepnet.transformer.positions.rotary import rotate_both
from deepnet.transformer.stacks import Stack

PAD = 29


def nothing(stack: Stack, head: int, query: int, key: int) -> float | Tensor:
    return 0.0


def alibi(stack: Stack, head: int, query: int, key: int) -> float:
    """Press et al., arXiv 2108.12409, section 3 and, for 6 heads, the authors' get_slopes written out."""
    slopes = {
        2: [2**-4, 2**-8],
        4: [2**-2, 2**-4, 2**-6, 2**-8],
        6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    }
    return -slopes[stack.layers[0].sublayers["self"].branch.num_heads][head] * abs(query - key)


def t5(stack: Stack, head: int, query: int, key: int) -> Tensor:
    """Raffel et al., arXiv 1910.10683, for distances up to 15: single buckets up to 7 (15 in a decoder), then 8."""
    ahead, distance = key > query, abs(query - key)
    if stack.name == "decoder":
        return stack.positions.bias[distance, head]
    # beyond 8 in 16 buckets, 8 + floor(8 log(distance / 8) / log(128 / 8)): 8 to 11 have 8, 12 to 15 have 9
    number = distance if distance < 8 else 8 if distance < 12 else 9
    return stack.positions.bias[number + 16 * ahead, head]


def turned(x: Tensor, position: int) -> Tensor:
    """Su et al., arXiv 2104.09864: the pair (i, i + K/2) of a vector [K] as a complex number, times e^(i angle)."""
    first, second = x.chunk(2)
    rates = torch.tensor(
        [10000.0 ** (-2 * i / len(x)) for i in range(len(first))], dtype=torch.float64
    )
    turn = torch.polar(torch.ones_like(rates), position * rates)
    pair = torch.complex(first, second) * turn
    return torch.cat([pair.real, pair.imag])


@dataclass(frozen=True)
class Row:
    name: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    bias: Callable[[Stack, int, int, int], float | Tensor] = nothing
    place: Callable[[Tensor, int], Tensor] = lambda x, position: x
    sharing: int = 1
    """Query heads that read one head of keys and values."""


ROWS = [
    Row("multi_head"),
    Row("rotary", {"positions": "rotary"}, place=turned),
    Row("alibi", {"positions": "alibi"}, bias=alibi),
    Row("alibi_6_heads", {"positions": "alibi", "num_heads": 6, "d_model": 24}, bias=alibi),
    Row("relative", {"positions": "relative"}, bias=t5),
    Row(
        "grouped_query",
        {"num_heads": 4, "num_kv_heads": 2, "positions": "rotary"},
        place=turned,
        sharing=2,
    ),
    Row(
        "multi_query_with_all",
        {"num_heads": 4, "num_kv_heads": 1, "positions": "alibi"},
        bias=alibi,
        sharing=4,
    ),
]
every_kind = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
ARCHITECTURES = ("encoder_decoder", "encoder_only", "decoder_only")


def config(row: Row, architecture: str = "encoder_decoder", **changes: Any) -> TransformerConfig:
    sizes = {"d_model": 16, "ffn_dim": 32, "num_heads": 2, "vocab_size": 30, "dropout": 0.0}
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 2,
        "decoder_layers": 0 if architecture == "encoder_only" else 2,
    }
    return TransformerConfig(
        **{"architecture": architecture, **layers, **sizes, **row.shape, **changes}
    )


def model_of(row: Row, scheme: str = "deepnorm", architecture: str = "encoder_decoder", **changes):
    """Return a float64 model whose every parameter, biases of scores included, is off its start."""
    model = Transformer(config(row, architecture, **changes), load_scheme(scheme)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        model.target_embedding.weight[PAD] = 0.0
        model.source_embedding.weight[PAD] = 0.0
    return model.eval()


def batch(length: int = 13) -> tuple[Tensor, Tensor, Tensor]:
    """Return source [2, T] with padding at the end of its second row, its keep mask, and target_in [2, T]."""
    source, target_in = torch.randint(2, PAD, (2, 2, length))
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[1, -3:] = False
    return source.masked_fill(~keep, PAD), keep, target_in


def by_hand(row: Row, stack: Stack, x: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
    """Return what the stack's first self-attention makes of `x` [T, D]: one head, one query, one key at a time."""
    branch = stack.layers[0].sublayers["self"].branch
    size, length = x.shape[1] // branch.num_heads, len(x)
    q, k, v = (
        [[row.place(part, t) if turns else part for part in of_token.split(size)] for t, of_token in enumerate(m(x))]
        for m, turns in ((branch.q, True), (branch.k, True), (branch.v, False))
    )  # fmt: skip
    out = torch.zeros(length, branch.num_heads, size, dtype=x.dtype)
    for head, i in product(range(branch.num_heads), range(length)):
        seen = [j for j in range(length) if keep[j] and not (causal and j > i)]
        shared = head // row.sharing
        scores = [
            q[i][head] @ k[j][shared] / math.sqrt(size) + row.bias(stack, head, i, j) for j in seen
        ]
        weights = torch.stack(scores).softmax(0)
        out[i, head] = sum(w * v[j][shared] for w, j in zip(weights, seen, strict=True))
    return branch.out(out.flatten(1))


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_queries_and_keys_turned_in_training_are_those_of_the_formula(num_kv_heads):
    angles = torch.randn(5, 3, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    rotary = torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)
    q, k = (
        torch.randn(2, heads, 5, 6, dtype=torch.float64, requires_grad=True)
        for heads in (4, num_kv_heads)
    )

    def by_hand(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    turned, expected = rotate_both(q, k, rotary), (by_hand(q), by_hand(k))
    weights = [torch.randn_like(x) for x in turned]
    found, sought = (
        torch.autograd.grad([(x * w).sum() for x, w in zip(both, weights, strict=True)], (q, k))
        for both in (turned, expected)
    )
    for a, b in zip((*turned, *found), (*expected, *sought), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@every_kind
@pytest.mark.parametrize("length", [13, 16])  # three products, torch's kernel
@torch.no_grad()
def test_it_is_its_formula(row, length):
    model, seen = model_of(row), {}
    for stack in model.stacks():
        stack.layers[0].sublayers["self"].branch.register_forward_hook(
            lambda module, args, out, name=stack.name: seen.update({name: (args[0], out)})
        )
    source, keep, target_in = batch(length)
    model(source, keep, target_in)
    for stack, mask in ((model.encoder, keep), (model.decoder, torch.ones_like(keep))):
        entered, found = seen[stack.name]
        for x, y, own in zip(entered, found, mask, strict=True):
            expected = by_hand(row, stack, x, own, causal=stack.name == "decoder")
            torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@every_kind
@pytest.mark.parametrize("length", [5, 16])
def test_its_gradients_are_those_of_the_function(row, length):
    model = model_of(row, encoder_layers=1, decoder_layers=1)
    sentences = batch(length)

    def loss() -> Tensor:
        return model(*sentences).logsumexp(-1).mean()

    loss().backward()
    step = 1e-6
    for name, parameter in model.named_parameters():
        if not name.endswith(("q.weight", "k.weight", "v.weight", "positions.bias")):
            continue
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            above = loss()
            parameter.sub_(direction, alpha=2 * step)
            below = loss()
            parameter.add_(direction, alpha=step)
        slope = (above - below) / (2 * step)
        torch.testing.assert_close((parameter.grad * direction).sum(), slope, rtol=1e-5, atol=1e-9)


@every_kind
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_cached_hypotheses_equal_the_whole_prefix(row, architecture):
    source, source_keep, _ = batch(6)
    check_cached_hypotheses(model_of(row, architecture=architecture), source, source_keep)


@every_kind
@torch.no_grad()
def test_padding_and_the_future_change_nothing(row):
    model = model_of(row)
    source, keep, target_in = batch(7)
    expected = model(source, keep, target_in)
    longer = nn.functional.pad(source, (0, 4), value=PAD), nn.functional.pad(keep, (0, 4))
    torch.testing.assert_close(model(*longer, target_in), expected, rtol=0, atol=1e-12)
    alone = model(source[1:, :4], None, target_in[1:])
    torch.testing.assert_close(alone, expected[1:], rtol=0, atol=1e-12)
    target_in[:, 5:] = 3
    torch.testing.assert_close(
        model(source, keep, target_in)[:, :5], expected[:, :5], rtol=0, atol=1e-12
    )


@every_kind
@torch.no_grad()
def test_padding_before_a_text_changes_nothing(row):
    if row.name == "multi_head":
        pytest.skip("its sinusoids count padding")
    model = model_of(row, "pre_ln", "decoder_only")
    ids = torch.randint(2, PAD, (1, 6))
    keep = torch.tensor([[False] * 3 + [True] * 6])
    found = model(nn.functional.pad(ids, (3, 0), value=PAD), keep)
    torch.testing.assert_close(found[:, 3:], model(ids), rtol=0, atol=1e-11)


@every_kind
@pytest.mark.parametrize("scheme", ["deepnorm", "admin", "completep", "r_fixup"])
@torch.no_grad()
def test_a_folded_model_computes_the_same(row, scheme):
    for architecture in ARCHITECTURES:
        model = model_of(row, scheme, architecture)
        plain = deepnet.fold(model)
        source, keep, target_in = batch(7)
        read = (source, keep, target_in) if architecture == "encoder_decoder" else (source,)
        torch.testing.assert_close(plain(*read), model(*read), rtol=0, atol=1e-10)


@every_kind
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_built_without_memory_becomes_the_one_built_in_place(row, architecture):
    torch.manual_seed(1)
    direct = Transformer(config(row, architecture), load_scheme("deepnorm"))
    with torch.device("meta"):
        made = Transformer(config(row, architecture), load_scheme("deepnorm"))
    made.to_empty(device="cpu")
    torch.manual_seed(1)
    made.reset_parameters()
    expected = direct.state_dict()
    assert made.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in made.state_dict().items())
    ids = batch(7)[0]
    read = (ids, None, ids) if architecture == "encoder_decoder" else (ids,)
    assert torch.equal(made(*read), direct(*read))


@every_kind
@torch.no_grad()
def test_a_bundle_brings_it_back(row, tmp_path):
    model = model_of(row).float()
    save_bundle(tmp_path / "bundle", model)
    loaded = load_bundle(tmp_path / "bundle").model.eval()
    assert loaded.config == model.config
    sentences = batch(7)
    assert torch.equal(loaded(*sentences), model(*sentences))


def test_autocast_s_type_is_the_queries_but_for_float64():
    narrow, wide = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    assert (query_type(narrow), query_type(wide)) == (torch.float32, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert (query_type(narrow), query_type(wide)) == (torch.bfloat16, torch.float64)


@every_kind
@pytest.mark.parametrize("length", [13, 16, 40])
def test_in_bf16_it_is_near_float32(row, length):
    """Under autocast queries are bf16 and the stream is not: whatever is computed once has to fit both."""
    model = model_of(row, "pre_ln").float()
    sentences = batch(length)
    exact = model(*sentences)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*sentences)
    assert low.float().sub(exact).norm() < 0.05 * exact.norm()
    low.float().logsumexp(-1).mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@every_kind
@pytest.mark.parametrize("length", [7, 16])
def test_recomputing_layers_gives_the_same_gradients(row, length):
    """What is shared enters each layer from outside, a trained bias with its gradient."""
    model, sentences, found = model_of(row).train(), batch(length), []
    layers = [layer for stack in model.stacks() for layer in stack.layers]
    for context in (nullcontext(), recomputed(layers)):
        model.zero_grad()
        with context:
            model(*sentences).logsumexp(-1).mean().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(torch.equal(grad, found[1][name]) for name, grad in found[0].items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@every_kind
@torch.no_grad()
def test_kernels_of_a_cuda_device_compute_what_a_cpu_does_in_float64(
    row, architecture, dtype, error
):
    """With masks whose rows are no multiple of 8 numbers, a causal flag, fewer heads of keys, added biases."""
    model = model_of(row, "pre_ln", architecture)
    source, keep, target_in = batch()
    read = (source, keep, target_in) if architecture == "encoder_decoder" else (source,)
    exact = model(*read)
    found = model.to("cuda", dtype)(*(x.cuda() for x in read)).double().cpu()
    assert (found - exact).norm() < error * exact.norm()


class Counting(TorchDispatchMode):
    """Counts the operations that only masks and positions need."""

    NAMES = frozenset(
        ("where", "masked_fill", "masked_fill_", "tril", "triu", "ones", "zeros", "full", "bitwise_not", "logical_not",
         "arange", "cos", "sin", "pow", "log", "abs", "embedding", "constant_pad_nd", "_to_copy")
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        self.found[name] += name in self.NAMES
        return func(*args, **(kwargs or {}))


@every_kind
@pytest.mark.parametrize("length", [7, 16])
def test_masks_and_positions_cost_the_same_at_any_depth(row, length):
    counted = []
    for layers in (1, 4):
        model = model_of(row, encoder_layers=layers, decoder_layers=layers)
        with Counting() as mode:
            model(*batch(length))
        counted.append(+mode.found)
    assert counted[0] == counted[1]
    assert counted[0]["where"] >= 3  # the mask of the encoder, of the decoder and of the memory


@torch.no_grad()
def test_grouped_keys_are_full_ones_whose_heads_are_repeated():
    row = Row("grouped", {"num_heads": 4, "num_kv_heads": 2})
    narrow, full = model_of(row), model_of(Row("full", {"num_heads": 4}))
    state = narrow.state_dict()
    for name, value in state.items():
        if ".branch.k." in name or ".branch.v." in name:
            state[name] = torch.cat([value[:4], value[:4], value[4:], value[4:]])
    full.load_state_dict(state)
    sentences = batch()
    torch.testing.assert_close(full(*sentences), narrow(*sentences), rtol=0, atol=1e-12)
    for one, other in zip(narrow.sites(), full.sites(), strict=True):
        for found, expected in zip(branch_matrices(one), branch_matrices(other), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("scheme", ["post_ln", "admin"])  # Glorot's normal and uniform draws
def test_grouped_keys_start_at_the_std_of_full_ones(scheme):
    row = Row("grouped", {"num_heads": 8, "num_kv_heads": 2, "d_model": 128})
    model = Transformer(config(row), load_scheme(scheme))
    for weight in model.role_weights():
        if weight.role in ("q", "k", "v", "out"):
            # a std of n normal draws has a standard error of 1 / sqrt(2 n), one of uniform draws a smaller one
            error = 4 / math.sqrt(2 * weight.parameter.numel())
            assert weight.parameter.std().item() == pytest.approx(128**-0.5, rel=error)
    assert all(line.standard_errors < 4 for line in initialization_report(model))


def test_a_cache_holds_the_few_heads():
    model = model_of(Row("grouped", {"num_heads": 4, "num_kv_heads": 1}))
    cache = model.begin(model.encode(batch(6)[0]))
    model.step(torch.full((2, 3), PAD), 0, cache)
    for layer in cache.layers:
        assert [part.get()[0].shape for part in (layer.own, layer.memory)] == [
            (2, 1, 3, 4),
            (2, 1, 6, 4),
        ]


def test_trained_biases_start_as_t5s_and_are_not_decayed():
    shape = config(Row("relative", {"positions": "relative", "num_heads": 8, "d_model": 64}))
    model = Transformer(shape, load_scheme("deepnorm"))
    rows = {name: policy for name, _, policy in parameter_policies(model)}
    for stack in model.stacks():
        error = 4 / math.sqrt(2 * 32 * 8)
        assert stack.positions.bias.std().item() == pytest.approx(64**-0.5, rel=error)
        assert rows[f"{stack.name}.positions.bias"] == Policy(weight_decay=0.0)
    places = {str(place) for place in parameter_places(model)}
    assert {"encoder.bias", "decoder.bias"} <= places


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"num_kv_heads": 3}, "num_heads 8 is not a multiple of num_kv_heads 3"),
        ({"num_kv_heads": 16}, "num_heads 8 is not a multiple of num_kv_heads 16"),
        ({"positions": "alibis"}, "positions"),
    ],
)
def test_impossible_kinds_are_refused(shape, words):
    with pytest.raises(ValidationError, match=words):
        TransformerConfig(**shape)


def test_every_kind_of_positions_is_a_file():
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert files == set(get_args(base.PositionKind))


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_a_bias_that_no_attention_would_hear_is_refused(positions):
    config = TransformerConfig(
        d_model=16, ffn_dim=32, num_heads=2, vocab_size=20, positions=positions
    )
    merged = load_scheme("ds_init", {"merged": True})
    with pytest.raises(ConfigError, match=f"positions '{positions}' are a bias of self-attention"):
        Transformer(config, merged)
