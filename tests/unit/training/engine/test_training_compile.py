"""Compilation block by block: one graph for each kind of block, no break, the same losses, a guard that still listens.

Backends here need no compiler: "eager" runs the graphs that were traced, "aot_eager" differentiates them first, as the
default one does.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.distributed.tensor import DTensor

from deepnet.errors import ConfigError, DeepNetError, DivergenceError
from deepnet.probes.norm_input import NormInputs
from deepnet.record import RunFolder, read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.training import loop
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine import compile as compilation
from deepnet.training.engine.compile import compiled, resolve_compile
from deepnet.training.engine.recompute import recomputed
from deepnet.training.loop import train_loop
from deepnet.transformer.dropout import dropout
from deepnet.transformer.models import Transformer, TransformerConfig

# torch asks every tensor for its gradient, and filters the warning of those that have none by a filter of its own
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

IDS = 23
LENGTHS = (5, 10, 15, 16, 20, 25, 31, 32, 40, 48, 55, 60)
CPU = torch.device("cpu")


@dataclass
class Texts:
    """Pairs of sentences, the second of which ends before the others."""

    source: torch.Tensor
    keep: torch.Tensor
    target: torch.Tensor

    def to(self, device):
        return self


def texts(length, *, seed=0):
    """Draw pairs: targets of that length, sources a token longer."""
    draw = torch.Generator().manual_seed(seed)
    source = torch.randint(0, IDS - 2, (3, length + 1), generator=draw)
    keep = torch.ones_like(source, dtype=torch.bool)
    keep[1, -1] = False
    return Texts(source, keep, torch.randint(0, IDS - 2, (3, length), generator=draw))


def logits(model, batch):
    return model(batch.source, batch.keep, batch.target)


def loss(model, batch):
    return summed_cross_entropy(logits(model, batch), batch.target)


def make(scheme, *, layers=3, dropout=0.1, loops=1):
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        loops=loops,
        d_model=16,
        ffn_dim=24,
        num_heads=2,
        vocab_size=IDS,
        tie_embeddings="decoder",
        dropout=dropout,
    )
    return Transformer(config, load_scheme(scheme, {}))


def blocks_of(model):
    return [layer for stack in model.stacks() for layer in stack.layers]


def whole_state(model):
    """Return the state of a model that may be in parts."""
    state = model.state_dict()
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in state.items()}


def kinds_of(blocks):
    """Return the different blocks: those whose modules and parameters are not the same, one for one."""
    return {
        (str(block), *((name, p.shape) for name, p in block.named_parameters())) for block in blocks
    }


@pytest.fixture
def counters(monkeypatch):
    """Let training.compile take a backend that runs graphs as they are, and count what torch does from here on."""
    dynamo = pytest.importorskip("torch._dynamo")
    monkeypatch.setattr(compilation, "_lacking", lambda device: "")
    monkeypatch.setattr(loop, "compiled", partial(compiled, backend="eager"))
    dynamo.reset()
    dynamo.utils.counters.clear()
    yield dynamo.utils.counters
    dynamo.reset()


def train(folder, model, batches, *, name="run", guard=None, resume=False, **training):
    """Train one update per batch and return the records, with the graphs there were after each update."""
    run = RunFolder.open(folder / name) if resume else RunFolder.create(folder / name, recipe={})
    graphs = []
    counted = torch._dynamo.utils.counters["stats"]
    train_loop(
        model,
        loader=ListedUpdates([ListedUpdate((batch,), batch.target.numel()) for batch in batches]),
        loss=loss,
        run=run,
        training=TrainingConfig(
            **{"max_steps": len(batches), "log_every": 1, "precision": "fp32", **training}
        ),
        optimizer=OptimizerConfig(name="sgd", lr=0.5),
        schedule=ScheduleConfig(name="constant", warmup_steps=0),
        blocks=blocks_of(model),
        after_update=lambda model, step: graphs.append(counted["unique_graphs"]),
        guard=guard,
        resume=resume,
    )
    return read_jsonl(run.metrics_path), graphs


@pytest.mark.parametrize(
    ("scheme", "per_kind"),
    [
        ("deepnorm", 1),
        ("branchnorm", 1),
        ("dlcl", 1),
        (
            "hyper_connections",
            2,
        ),  # the streams lie in memory in another order after the first block
        ("mix_ln", 1),
        ("layerscale", 1),
        ("prores", 1),
        ("derf", 1),
        ("gpas", 1),
        ("laurel", 1),
        # a state that grows: a graph for each length that it has
        ("attn_res", 3),
        ("mhc", 2),  # as hyper_connections
        ("mudd", 1),
        # the first block is given one tensor twice
        ("siamese_norm", 2),
        ("x0", 2),
        ("denseformer", 1),  # whose layers differ in the length of their weights, too
    ],
)
def test_one_graph_for_each_kind_of_block_without_breaks_for_any_length(
    tmp_path, counters, scheme, per_kind
):
    model = make(scheme)
    batches = [texts(length) for length in LENGTHS]
    _, graphs = train(tmp_path, model, batches, compile="blocks")
    assert graphs[0] == per_kind * len(kinds_of(blocks_of(model)))
    assert graphs[-1] - graphs[0] <= 2
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("scheme", "engine", "recompute"),
    [("deepnorm", "auto", False), ("pre_ln", "auto", True), ("deepnorm", "sharded", False)],
)
def test_compiled_blocks_compute_the_same(
    tmp_path, counters, monkeypatch, scheme, engine, recompute
):
    monkeypatch.setattr(loop, "compiled", partial(compiled, backend="aot_eager"))
    batches = [texts(length, seed=length) for length in (7, 5, 9)]
    seen = {}
    for choice in ("off", "blocks"):
        model = make(scheme, layers=2, dropout=0.0)
        kept = {"compile": choice, "engine": engine, "recompute": recompute}
        records, graphs = train(tmp_path, model, batches, name=choice, **kept)
        assert graphs[-1] == (2 if choice == "blocks" else 0)
        shown = [[one["loss"], one["gradient_norm"]] for one in records]
        seen[choice] = torch.tensor(shown), whole_state(model)
    assert not counters["graph_break"]
    torch.testing.assert_close(seen["blocks"][0], seen["off"][0], rtol=1e-5, atol=0.0)
    assert seen["blocks"][1].keys() == seen["off"][1].keys()
    for name, weight in seen["off"][1].items():
        torch.testing.assert_close(seen["blocks"][1][name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_compiled_model_shows_the_guard_what_enters_its_norms(counters, recomputes):
    model = make("pre_ln", layers=1, dropout=0.0).train()
    shown = []
    for compiles in (False, True):
        inputs, blocks = NormInputs(model), blocks_of(model)
        around = compiled(blocks if compiles else [], backend="aot_eager")
        again = recomputed(blocks if recomputes else [])
        with around, again, inputs.open():
            for length in (5, 8):
                loss(model, texts(length)).backward()
        squares, counts = inputs.take(CPU).chunk(2)
        assert (counts > 0).all()
        shown.append(squares / counts)
        assert inputs.take(CPU).eq(0).all()
    torch.testing.assert_close(shown[1], shown[0], rtol=1e-6, atol=0.0)


def test_a_compiled_block_drops_at_the_rate(counters):
    ones = torch.ones(400, 500, requires_grad=True)
    fast = torch.compile(partial(dropout, rate=0.1), backend="aot_eager", fullgraph=True)
    dropped = fast(ones)
    gone = (dropped == 0).double().mean().item()
    assert gone == pytest.approx(0.1, abs=0.005)  # 7 standard deviations
    assert dropped.detach().unique().tolist() == pytest.approx([0.0, 1 / 0.9])


def test_names_stay_and_only_what_trains_runs_compiled(counters):
    model, batch = make("deepnorm", dropout=0.0), texts(6)
    names = list(model.state_dict())
    plain = logits(model.eval(), batch)
    with compiled(blocks_of(model), backend="eager"):
        assert list(model.state_dict()) == names
        assert torch.equal(logits(model, batch), plain)
        with torch.no_grad():
            assert torch.equal(logits(model.train(), batch), plain)
        assert not counters["stats"]["unique_graphs"]
        logits(model, batch).sum().backward()
        assert counters["stats"]["unique_graphs"] == 2
    assert all("forward" not in vars(block) for block in blocks_of(model))


def test_the_guard_finds_the_place_in_a_compiled_model(tmp_path, counters):
    model = make("deepnorm", layers=2)
    with torch.no_grad():
        model.encoder.layers[1].sublayers["ffn"].branch.fc1.bias[3] = torch.nan
    with pytest.raises(DivergenceError, match=r"encoder\.2\.ffn"):
        train(tmp_path, model, [texts(6)], compile="blocks")
    (incident,) = read_jsonl(RunFolder.open(tmp_path / "run").incidents_path)
    assert incident["where"] == "encoder.2.ffn.fc1"


def test_a_run_goes_on_with_blocks_compiled_or_not(tmp_path, counters):
    batches, model = [texts(6), texts(9)], make("deepnorm", layers=1)
    train(tmp_path, model, batches[:1], compile="blocks")
    _, graphs = train(tmp_path, make("deepnorm", layers=1), batches, compile="off", resume=True)
    assert len(graphs) == 1
    assert len(list_checkpoints(RunFolder.open(tmp_path / "run").checkpoints)) == 2


def refuse(graph, inputs):
    """Stand for a backend whose compiler does not work."""
    raise ValueError("C++ compile error\nblock.cpp:7: error: no such header")


def test_a_block_that_torch_cannot_compile_ends_the_run_with_the_reason(counters):
    model = make("deepnorm", layers=1).train()
    reason = (
        r"cannot compile a block of this model: block\.cpp:7: error: no such header; set training"
    )
    with pytest.raises(DeepNetError, match=reason), compiled(blocks_of(model), backend=refuse):
        logits(model, texts(5))


def test_a_machine_without_a_compiler_is_told_what_to_install():
    inductor = pytest.importorskip("torch._inductor.config")
    with (
        inductor.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(ConfigError) as error,
    ):
        resolve_compile("blocks", device=CPU, has_blocks=True)
    assert str(error.value) == (
        "training.compile = 'blocks' needs a C++ compiler (g++ or the one that CXX names), and there is none; "
        "install it, or set training.compile = 'off'"
    )


def test_a_device_that_torch_does_not_compile_for_is_refused():
    with pytest.raises(ConfigError, match="needs a CUDA device or a CPU, not 'meta'"):
        resolve_compile("blocks", device=torch.device("meta"), has_blocks=True)


def test_compiling_blocks_that_nobody_named_is_refused(toy):
    with pytest.raises(
        ConfigError, match=r"training\.compile is set, but the caller gives no blocks"
    ):
        toy.train(compile="blocks")


def test_layers_that_run_again_use_the_graph_that_there_is(counters, tmp_path):
    batches = [texts(length) for length in LENGTHS]
    plain, _ = train(tmp_path, make("deepnorm", dropout=0.0, loops=3), batches, name="plain")
    model = make("deepnorm", dropout=0.0, loops=3)
    fast, graphs = train(tmp_path, model, batches, name="fast", compile="blocks")
    assert graphs[-1] == graphs[0] == len(kinds_of(blocks_of(model))) == 2
    # later ones are far apart: rounding grows in 18 layers at this rate
    found, expected = ([row["loss"] for row in rows[:3]] for rows in (fast, plain))
    assert found == pytest.approx(expected, rel=1e-5)
