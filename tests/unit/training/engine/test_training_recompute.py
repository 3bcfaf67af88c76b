"""Recompute in segments: gradients bit for bit, memory by the square root of the depth, and what is refused."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn

from deepnet.config import build
from deepnet.errors import ConfigError
from deepnet.planning.live_bytes import UNCLAIMED, LiveBytes
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine.compile import compiled
from deepnet.training.engine.data_parallel import DataParallel
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import list_chains, recomputed, recomputed_segments
from deepnet.training.loop import train_loop
from deepnet.transformer.chain import Chain
from deepnet.transformer.models import Transformer, TransformerConfig

IDS = 30
ROWS, LENGTH, WIDTH = 2, 8, 16
STATE = 4 * ROWS * LENGTH * WIDTH
"""Bytes of a stream's state [B, T, D]."""
CPU = torch.device("cpu")


@dataclass
class Pairs:
    source: torch.Tensor
    target: torch.Tensor

    def to(self, device):
        return self


def pairs(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return Pairs(*torch.randint(2, IDS - 1, (2, ROWS, LENGTH), generator=draw))


def loss(model, batch):
    logits = model(batch.source, torch.ones_like(batch.source, dtype=torch.bool), batch.target)
    return summed_cross_entropy(logits, batch.target)


def make(depth=4, *, dropout=0.2, loops=1):
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder_layers=depth,
        decoder_layers=depth,
        d_model=WIDTH,
        ffn_dim=32,
        num_heads=2,
        vocab_size=IDS,
        dropout=dropout,
        loops=loops,
    )
    return Transformer(config, load_scheme("deepnorm"))


def gradients(model, *, module=None):
    model.train().zero_grad()
    torch.manual_seed(5)
    loss(module or model, pairs()).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def check_same(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("num_layers", [0, 3, 6])
def test_segments_go_over_the_passes_of_looped_layers(num_layers):
    plain = gradients(make(2, loops=3))
    model = make(2, loops=3)
    with recomputed_segments(list_chains(model), num_layers=num_layers):
        check_same(gradients(model), plain)


def most_activations(model, context):
    """Return the most bytes of activations in both passes, and those kept when the forward pass is over."""
    live = LiveBytes()
    live.claim(model.parameters(), "weights")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        live.claim([parameter.grad], "gradients")
    with context, live:
        found = loss(model, pairs())
        kept = live.held[UNCLAIMED]
        found.backward()
    return live.most[UNCLAIMED], kept


@pytest.mark.parametrize("num_layers", [1, 2, 3, 9, 0])
def test_a_segment_of_any_length_gives_the_same_gradients(num_layers):
    model = make(5)
    expected = gradients(model)
    with recomputed_segments(list_chains(model), num_layers=num_layers):
        check_same(gradients(model), expected)
    assert all("run" not in vars(chain) for chain in list_chains(model))


def test_segments_keep_the_states_between_them_alone():
    kept = {}
    for num_layers in (1, 2, 4):
        model = make(8, dropout=0.0)
        _, kept[num_layers] = most_activations(
            model, recomputed_segments(list_chains(model), num_layers=num_layers)
        )
    # of two stacks of eight layers: 16, 8 and 4 states
    assert kept[1] - kept[2] == 8 * STATE
    assert kept[2] - kept[4] == 4 * STATE


def test_memory_grows_with_the_square_root_of_the_depth():
    most, by_layer = {}, {}
    for depth in (4, 16, 64):
        model = make(depth, dropout=0.0)
        chains = list_chains(model)
        most[depth], _ = most_activations(model, recomputed_segments(chains, num_layers=0))
        blocks = [layer for chain in chains for layer in chain]
        by_layer[depth], _ = most_activations(model, recomputed(blocks))
    # roots 2, 4, 8: the second step is twice the first, where it is four times as large with the depth
    assert most[64] - most[16] == pytest.approx(2 * (most[16] - most[4]), rel=0.05)
    assert by_layer[64] - by_layer[16] == pytest.approx(4 * (by_layer[16] - by_layer[4]), rel=0.05)
    # at most the segments of both stacks, and the layers of one segment
    assert most[64] - most[4] <= (2 * 8 + 8) * STATE


def test_a_state_of_several_tensors_is_held_by_no_tuple():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, state, factor):
            x, y = state
            return self.linear(x).tanh() * factor, y + x

    chain = Chain(Pair() for _ in range(16))
    x = torch.randn(ROWS, LENGTH, WIDTH)

    def passes(num_layers=None):
        live = LiveBytes()
        live.claim(chain.parameters(), "weights")
        chain.zero_grad()
        with live:
            if num_layers is None:
                first, second = chain.run((x, x), 2.0)
            else:
                with recomputed_segments([chain], num_layers=num_layers):
                    first, second = chain.run((x, x), 2.0)
            kept = live.held[UNCLAIMED]
            (first.sum() + second.square().sum()).backward()
        return [p.grad.clone() for p in chain.parameters()], kept

    expected, plain = passes()
    found, nested = passes(0)
    check_same(found, expected)
    # the states after three of four segments, of two tensors each, and the last one; in each layer one is not kept
    assert nested <= 2 * 4 * STATE + STATE < plain / 2


# torch asks every tensor for its gradient, and filters the warning of those that have none by a filter of its own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("num_layers", [2, 0])
def test_segments_stand_around_compiled_blocks(num_layers):
    pytest.importorskip("torch._dynamo").reset()
    model = make(4)
    blocks = [layer for chain in list_chains(model) for layer in chain]
    with compiled(blocks, backend="eager"):
        expected = gradients(model)
        with recomputed_segments(list_chains(model), num_layers=num_layers):
            check_same(gradients(model), expected)
    torch._dynamo.reset()


@pytest.fixture
def group():
    """A group of one process, for torch's data parallel."""
    is_mine = not dist.is_initialized()  # a test of the same process may have left one
    if is_mine:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    if is_mine:
        dist.destroy_process_group()


@pytest.mark.parametrize("num_layers", [2, 0])
def test_data_parallel_gives_the_same(group, num_layers):
    model = make(4)
    expected = gradients(model)
    engine = DataParallel(
        model,
        optimizer=OptimizerConfig(name="sgd"),
        precision=Precision("fp32", "cpu"),
        ranks=Ranks(CPU, 0, 1, control=group, gradients=group),
    )
    with recomputed_segments(list_chains(model), num_layers=num_layers):
        check_same(gradients(model, module=engine.module), expected)


def train(folder, name, **training):
    model = make(4)
    run = RunFolder.create(folder / name, recipe={})
    batches = [pairs(seed) for seed in range(6)]
    train_loop(
        model,
        loader=ListedUpdates([ListedUpdate((one,), one.target.numel()) for one in batches]),
        loss=loss,
        run=run,
        training=TrainingConfig(max_steps=6, save_every=0, **training),
        optimizer=OptimizerConfig(lr=1e-3),
        schedule=ScheduleConfig(name="constant", warmup_steps=0),
        blocks=[layer for chain in list_chains(model) for layer in chain],
    )
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("segment", [1, 3, 0])
def test_a_run_ends_with_the_same_weights(tmp_path, segment):
    expected = train(tmp_path, "plain")
    check_same(train(tmp_path, "again", recompute=True, recompute_segment=segment), expected)


def test_a_length_without_recompute_has_no_effect_and_is_refused():
    with pytest.raises(ConfigError, match="recompute_segment = 4 has no effect"):
        build(TrainingConfig, {"max_steps": 1, "recompute_segment": 4})


def test_layers_that_are_not_known_to_follow_each_other_are_refused(toy):
    model = toy.model()
    with pytest.raises(ConfigError, match=r"training\.recompute_segment is set, but"):
        toy.train(model=model, blocks=list(model), recompute=True, recompute_segment=2)


def test_parts_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'sharded' does not run training\.recompute_segment"):
        train(tmp_path, "parts", engine="sharded", recompute=True, recompute_segment=2)
