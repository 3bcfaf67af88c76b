"""Every scheme on two gloo processes, by each engine, computes what one process does; checkpoints go from any to any.

The file is its own driver: pytest starts it twice per engine, as two ranks that train everything there is to compare.
"""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from deepnet.bundle import load_model_tensors
from deepnet.pipeline.run import follow_updates
from deepnet.record import RunFolder, read_jsonl
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.training.batches import ListedUpdate
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.checkpoint.selection import selected_weights
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine.ranks import Ranks, joined_ranks
from deepnet.training.guard.config import GuardConfig
from deepnet.training.loop import train_loop
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

ENGINES = ("data_parallel", "sharded")
IDS = 13
STEPS = 20
SCHEME = "deepnorm"
"""Of the runs that are interrupted, resumed elsewhere, or in trouble."""
LOOPED = f"{SCHEME}, looped"
"""The same scheme, of one layer a stack that runs three times."""
TRAINED = (*list_schemes(), LOOPED)


@dataclass
class Texts:
    """Pairs of sentences without padding."""

    source: torch.Tensor
    target: torch.Tensor
    weight: float = 1.0
    """What their loss is multiplied by."""

    def to(self, device):
        return self


@dataclass
class Dealt:
    """Updates of micro-batches of different sizes: of three, the first of two ranks has two, the second one."""

    ranks: Ranks
    rows: tuple[int, ...]
    nan_at: int | None = None
    """The update whose loss is not a number on its second micro-batch, the second rank's own."""
    spike_at: int | None = None
    """The update whose loss is a thousand times as large."""

    def updates(self, epoch, start=0):
        for index in range(start, STEPS + 4):
            batches = [texts(index, rows) for rows in self.rows]
            if index == self.nan_at:
                batches[1].target.fill_(-1)
            if index == self.spike_at:
                batches = [replace(batch, weight=1000.0) for batch in batches]
            mine = batches[self.ranks.rank :: self.ranks.world_size]
            yield ListedUpdate(tuple(mine), sum(self.rows) * 4)

    def updates_per_epoch(self, epoch):
        return STEPS + 4


def texts(seed, rows):
    """Draw pairs whose targets are there to be learnt: the source, one id on."""
    draw = torch.Generator().manual_seed(10 * seed + rows)
    source = torch.randint(0, IDS - 2, (rows, 4), generator=draw)
    return Texts(source, source + 1)


def arguments(batch, *, both):
    return (batch.source, None, batch.source) if both else (batch.source,)


def loss(model, batch, *, both):
    """Return the loss; a NaN that every weight has a part in where the target is negative."""
    logits = model(*arguments(batch, both=both))
    if (batch.target < 0).any():
        return logits.sum() * torch.nan
    return batch.weight * summed_cross_entropy(logits, batch.target)


def make(scheme):
    """Return a small model without dropout, of both stacks where the scheme has them."""
    torch.manual_seed(0)
    plan = load_scheme(scheme.partition(",")[0], {})
    architecture = plan.architectures[0]
    layers = 2 if scheme == "value_residual" else 1  # of one layer it is its base
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=layers * (architecture != "decoder_only"),
        decoder_layers=layers * (architecture != "encoder_only"),
        d_model=8,
        ffn_dim=12,
        num_heads=2,
        vocab_size=IDS,
        tie_embeddings="decoder" if scheme == "t_fixup" else "all",
        dropout=0.0,
        loops=3 if scheme == LOOPED else 1,
    )
    return Transformer(config, plan)


def train(
    ranks,
    folder,
    *,
    scheme,
    engine,
    steps=STEPS,
    resume=False,
    nan_at=None,
    spike_at=None,
    guard=None,
    optimizer="adam",
):
    """Train with everything that an engine has a part in."""
    every = STEPS // 2 if scheme == SCHEME else STEPS
    model = make(scheme)
    both = model.config.architecture == "encoder_decoder"
    own = arguments(texts(0, 2), both=both)
    train_loop(
        model,
        loader=Dealt(
            ranks, rows=(2, 3, 1) if scheme == SCHEME else (2, 3), nan_at=nan_at, spike_at=spike_at
        ),
        loss=partial(loss, both=both),
        run=RunFolder(folder),
        training=TrainingConfig(
            max_steps=steps,
            log_every=1,
            save_every=every,
            validate_every=every,
            clip_norm=0.5,
            ema_decay=0.9,
            precision="fp32",
            engine=engine,
        ),
        optimizer=OptimizerConfig(name=optimizer, lr=2e-3, eps=1e-4, weight_decay=0.1),
        schedule=ScheduleConfig(warmup_steps=4),
        guard=guard or GuardConfig(nan="roll_back" if nan_at else "stop"),
        validate=lambda model, step: {"loss": float(loss(model, texts(99, 4), both=both))},
        prepare=lambda model: model.scheme.prepare(model, iter([own])),
        after_update=follow_updates(model.scheme),
        policies=parameter_policies(model),
        blocks=[layer for stack in model.stacks() for layer in stack.layers],
        ranks=ranks,
        resume=resume,
    )


def main(root, engine):
    """Be one rank of two: train every scheme, then what is interrupted, then what goes on from one process."""
    torch.set_num_threads(1)
    with joined_ranks(torch.device("cpu")) as ranks:
        for scheme in TRAINED:
            train(ranks, root / engine / scheme, scheme=scheme, engine=engine)
        half, other = root / engine / "half", root / engine / "from_one"
        train(ranks, half, scheme=SCHEME, engine=engine, steps=STEPS // 2)
        train(ranks, other, scheme=SCHEME, engine=engine, resume=True)
        train(ranks, root / engine / "trouble", scheme=SCHEME, engine=engine, nan_at=15)
        train(ranks, root / engine / "warned", scheme=SCHEME, engine=engine, spike_at=17)
        off = GuardConfig(spike="off", explosion="off", plateau="off", nan="off")
        train(ranks, root / engine / "unwatched", scheme=SCHEME, engine=engine, guard=off)
        if engine == "data_parallel":
            muon = {"scheme": SCHEME, "engine": engine, "optimizer": "muon"}
            train(ranks, root / engine / "muon", resume=True, **muon)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_pair):
    """The folder of what one process and two, by each engine, trained."""
    root = tmp_path_factory.mktemp("engines")
    names = [*TRAINED, "half", "from_one", "trouble", "warned", "unwatched", "muon"]
    for engine in ("one", *ENGINES):
        for name in names:
            RunFolder.create(root / engine / name, recipe={})
    muon = {"scheme": SCHEME, "engine": "auto", "optimizer": "muon"}
    train(Ranks(), root / "data_parallel" / "muon", steps=STEPS // 2, **muon)
    train(Ranks(), root / "one" / "muon", **muon)
    for engine in ENGINES:  # half of each run that two ranks are to end
        train(Ranks(), root / engine / "from_one", scheme=SCHEME, engine="auto", steps=STEPS // 2)
        codes, said = run_pair(__file__, root, engine)
        assert codes == [0, 0], said
        train(Ranks(), root / engine / "half", scheme=SCHEME, engine="auto", resume=True)
    for scheme in TRAINED:
        train(Ranks(), root / "one" / scheme, scheme=scheme, engine="auto")
    train(Ranks(), root / "one" / "trouble", scheme=SCHEME, engine="auto", nan_at=15)
    train(Ranks(), root / "one" / "warned", scheme=SCHEME, engine="auto", spike_at=17)
    return root


FIGURES = ("loss", "gradient_norm", "validation_loss")


def figures(folder):
    """Return what a run recorded, step by step."""
    return [
        [row[name] for name in FIGURES if name in row]
        for row in read_jsonl(folder / "metrics.jsonl")
    ]


def assert_same(found, expected):
    assert len(found) == len(expected) == STEPS
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scheme", TRAINED)
def test_two_ranks_have_the_losses_and_gradient_norms_of_one(runs, engine, scheme):
    assert_same(figures(runs / engine / scheme), figures(runs / "one" / scheme))


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_whose_guard_is_off_add_up_the_same_numbers(runs, engine):
    assert_same(figures(runs / engine / "unwatched"), figures(runs / "one" / SCHEME))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["half", "from_one"])
def test_a_run_goes_on_on_another_number_of_ranks_as_if_it_had_not_stopped(runs, engine, name):
    assert_same(figures(runs / engine / name), figures(runs / "one" / SCHEME))


def test_muon_goes_on_on_two_ranks_as_on_one(runs):
    ours, theirs = (figures(runs / kind / "muon") for kind in ("data_parallel", "one"))
    assert ours[: STEPS // 2] == theirs[: STEPS // 2]
    for one, other in zip(ours, theirs, strict=True):  # Newton-Schulz rounds to bfloat16
        assert one == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_two_ranks_saved_are_the_weights_of_one_under_the_same_names(runs, engine):
    ours, theirs = (
        selected_weights(list_checkpoints(runs / kind / SCHEME / "checkpoints")[-1:])
        for kind in (engine, "one")
    )
    model = make(SCHEME)
    load_model_tensors(model, ours)  # strictly: names, shapes and types
    for name, tensor in theirs.items():
        if not name.endswith("k.bias"):  # its gradient is rounding, which Adam makes a step of
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_go_back_together_from_trouble_and_name_the_same_place(runs, engine):
    (ours,), (theirs,) = (
        read_jsonl(RunFolder(runs / kind / "trouble").incidents_path) for kind in (engine, "one")
    )
    for key in ("step", "kind", "action", "where", "found_by", "back_to"):
        assert ours[key] == theirs[key], key
    assert_same(figures(runs / engine / "trouble"), figures(runs / "one" / "trouble"))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_warning_leaves_the_update_as_it_was(runs, engine):
    for kind in (engine, "one"):
        (incident,) = read_jsonl(RunFolder(runs / kind / "warned").incidents_path)
        assert (incident["step"], incident["kind"], incident["action"]) == (18, "spike", "warn")
    assert_same(figures(runs / engine / "warned"), figures(runs / "one" / "warned"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
