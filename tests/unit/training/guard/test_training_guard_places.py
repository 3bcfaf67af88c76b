"""Where the guard says that trouble began: in the order of execution, for any model, and by the sign that fired."""

import itertools
import json
import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepnet.errors import DivergenceError
from deepnet.probes.norm_input import NormInputs
from deepnet.probes.place import Place
from deepnet.record import read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.judge import Guard
from deepnet.training.guard.signals import Signals, Watched
from deepnet.transformer.models import Transformer
from guard_faults import enlarged, planted, spoilt
from guard_places import Subject, heavier, make, modules


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """Return a function that trains the model of a scheme or family a little, once, for all tests."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = Subject(make(name, 2), tmp_path_factory.mktemp(name))
        return made[name]

    return of


def of_layer(name, layer, place):
    (path,) = [path for path, where in modules(name, layer) if where == place]
    return path


CELLS = [
    ("deepnorm", 1, "encoder.1.ffn.fc2"),
    ("t_fixup", 2, "decoder.2.cross.k"),
    ("rezero", 1, "decoder.1.self.out"),
    ("rezero", 2, "decoder.2.ffn.fc2"),  # its sites share a scale
    ("pre_ln", 2, "decoder.2.self.q"),
    ("gpt2", 1, "decoder.1.ffn.fc1"),
    ("gpt2", 2, "decoder.2.self.qkv"),
    ("bert", 2, "encoder.2.self.k"),
    ("t5", 1, "encoder.1.ffn.fc1"),  # one dropout at the beginning and at the end of a stack
]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("name", "layer", "place"), CELLS)
def test_a_nan_in_an_activation_or_its_gradient_is_found(subject, name, layer, place, backward):
    one = subject(name)
    with planted(one.model.get_submodule(of_layer(name, layer, place)), spoilt, backward=backward):
        verdict = one.judge()
    assert (verdict.kind, str(verdict.where)) == ("nan", place)


@pytest.mark.parametrize(
    ("name", "layer", "place"),
    [("deepnorm", 1, "encoder.1.ffn.fc2"), ("pre_ln", 2, "decoder.2.self.v"),
     ("rezero", 2, "decoder.2.ffn.fc1"), ("bert", 1, "encoder.1.ffn.fc2")],
)  # fmt: skip
def test_a_matrix_that_is_a_thousand_times_too_large_is_found(subject, name, layer, place):
    one = subject(name)
    with heavier(one.model.get_submodule(of_layer(name, layer, place))):
        verdict = one.judge()
    assert (verdict.kind, str(verdict.where)) == ("spike", place)


@pytest.mark.parametrize(
    ("name", "layer", "place"),
    [("deepnorm", 1, "encoder.1.self.q"), ("deepnorm", 2, "decoder.2.cross.k"),
     ("rezero", 2, "decoder.2.self.k"), ("bert", 1, "encoder.1.self.q")],
)  # fmt: skip
def test_a_matrix_of_queries_or_keys_is_found_by_what_it_hands_the_other(
    subject, name, layer, place
):
    """A softmax that it saturates leaves loss and norms where they were."""
    one = subject(name)
    with heavier(one.model.get_submodule(of_layer(name, layer, place))):
        verdict = one.judge()
    assert (verdict.kind, verdict.sign.name, str(verdict.where)) == ("spike", "query_key", place)


@pytest.mark.parametrize("place", ["decoder.1.cross.k", "encoder.2.ffn.fc1"])
def test_a_gradient_that_grows_a_thousandfold_in_one_module_is_found(subject, place):
    one = subject("deepnorm")
    path = of_layer("deepnorm", int(place.split(".")[1]), place)
    with planted(one.model.get_submodule(path), enlarged, backward=True):
        verdict = one.judge()
    assert (verdict.sign.name, str(verdict.where)) == ("gradient_norm", place)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["pre_ln", "deepnorm"])
def test_a_nan_that_does_not_come_again_is_found_by_what_it_left(subject, name, backward):
    one, stack = subject(name), "encoder" if name == "deepnorm" else "decoder"
    place = f"{stack}.1.ffn.fc1"
    module = one.model.get_submodule(of_layer(name, 1, place))
    with planted(module, spoilt, backward=backward, once=True):
        verdict = one.judge()
    assert str(verdict.where).startswith(f"{stack}.1.ffn")
    assert "computed again, everything was finite" in verdict.found_by


def test_a_forward_nan_that_does_not_come_again_names_nothing_without_norms(subject):
    one = subject("rezero")
    module = one.model.get_submodule(of_layer("rezero", 1, "decoder.1.ffn.fc1"))
    with planted(module, spoilt, backward=False, once=True):
        assert one.judge().where is None


def test_a_model_whose_sites_are_not_known_is_told_of_by_its_modules(tmp_path):
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(24, 8), *layers, nn.Linear(8, 24))

    def next_token(model, ids):
        return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    one = Subject(model, tmp_path, loss=next_token)
    for backward in (False, True):
        with planted(model[2][0], spoilt, backward=backward):
            assert str(one.judge().where) == "2.0"


@pytest.fixture
def train(toy):
    """Return a function that trains the toy and returns its incidents; `at` is the batch that `spoil` is given."""

    def run(*, model=None, at=None, spoil=None, name="run", **guard):
        updates = toy.updates(20)
        if at is not None:
            spoil(updates.listed[at].batches[0])
        toy.train(
            name,
            model=model,
            loader=updates,
            max_steps=19,
            optimizer={"name": "sgd", "lr": 1e-3},
            guard=GuardConfig(**guard),
        )
        path = toy.folder / name / "incidents.jsonl"
        return read_jsonl(path) if path.exists() else []

    return run


def test_what_the_model_is_given_is_named_where_it_is_not_finite(train):
    (incident,) = train(at=17, spoil=lambda batch: batch.x.fill_(math.nan), nan="skip")
    assert (incident["where"], incident["sign"], incident["limit"]) == ("input", "not_finite", None)


def test_a_loss_that_is_not_finite_on_finite_outputs_is_named(toy):
    def bad(model, batch):
        return toy.loss(model, batch) * math.nan

    with pytest.raises(DivergenceError, match=r"nan at step 1 .*in loss"):
        toy.train(loss=bad)


def louder(batch):
    """Make what the toy's norm reads a hundred times as large."""
    batch.x.mul_(100)


def test_an_incident_says_which_number_passed_which_limit(train, toy):
    (incident,) = train(model=Normless(), at=17, spoil=lambda batch: batch.x.mul_(1000))
    assert (incident["sign"], incident["sign_at"]) == ("loss", None)
    last = json.loads((toy.folder / "run" / incident["details"]).read_text())
    highest, lowest = max(last["loss"][:-1]), min(last["loss"][:-1])
    assert incident["value"] == incident["loss"] == last["loss"][-1]
    assert incident["limit"] == pytest.approx(highest + (highest - lowest))
    for number in (incident["value"], incident["limit"]):
        assert f"{number:.4g}" in incident["message"]
    assert last["again"]["output"]["1"][0] > 10
    assert last["again"]["not_finite"] == []


class Normless(nn.Sequential):
    """A toy in which a loud input makes a loud output, and which counts its passes."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Dropout(0.5), nn.Linear(4, 3))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


def test_the_sign_of_a_norm_says_which_norm_and_by_how_much(subject):
    one, entered = subject("deepnorm"), []
    norm = one.model.get_submodule("encoder.layers.1.sublayers.ffn.residual.post")
    handle = norm.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    with heavier(one.model.get_submodule(of_layer("deepnorm", 2, "encoder.2.ffn.fc2"))):
        verdict = one.judge()
    handle.remove()
    sign, history = verdict.sign, one.trained.guard.history
    index = history.norm_inputs.index(Place("encoder", 2, "ffn"))
    highest = max(float(row.norm_inputs[index]) for row in history.normal())
    assert (sign.name, str(sign.place)) == ("norm_input", "encoder.2.ffn")
    assert sign.limit == pytest.approx(4 * highest)
    assert sign.value == pytest.approx(entered[0].square().mean().sqrt().item())
    assert f"{sign.value:.4g}, more than {sign.limit:.4g}" in verdict.message


def test_computing_an_update_again_changes_nothing_that_is_trained(train):
    """A warned update is applied: with dropout, the run ends as one whose guard is off, buffers included."""
    ends, told = [], []
    for action in ("warn", "off"):
        model = Normless()
        loud = {"at": 17, "spoil": lambda batch: batch.x.mul_(1000)}
        told.append(len(train(model=model, name=action, spike=action, **loud)))
        ends.append(torch.cat([t.flatten() for t in model.state_dict().values()]))
    assert told == [1, 0]
    assert torch.equal(*ends)


def test_a_loss_that_cannot_be_asked_twice_does_not_cost_the_run(toy):
    seen, updates = [], toy.updates(20)
    updates.listed[17].batches[0].x[0, 0] = math.nan

    def once(model, batch):
        seen.append(batch.x.sum().item())
        if seen.count(seen[-1]) > 1 or (math.isnan(seen[-1]) and len(seen) > 36):
            raise RuntimeError("this batch is used up")
        return toy.loss(model, batch)

    result, _, run = toy.train(
        loader=updates, loss=once, max_steps=19, guard=GuardConfig(nan="skip")
    )
    (incident,) = read_jsonl(run.incidents_path)
    details = json.loads((run.path / incident["details"]).read_text())
    assert result.step == 19
    assert (incident["where"], details["again"]) == (
        None,
        {"failed": "RuntimeError: this batch is used up"},
    )


def test_a_recomputed_block_is_listened_to_once(toy):
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(4, 3))
    updates = toy.updates(20)

    spoils = planted(model[1][0], lambda gradient: gradient * math.nan, backward=True)
    with spoils, pytest.raises(DivergenceError, match=r"in 1\.0"):
        toy.train(model=model, loader=updates, blocks=list(model), recompute=True)


ROLES = ("q", "k", "v", "out", "bias", "bias", "bias", "bias")


def rows_of(gradients, number=20):
    parameters = [
        Watched(Place("encoder", layer, "self", role), True) for layer in (1, 2) for role in ROLES
    ]
    guard = Guard(GuardConfig(), parameters=parameters, norm_inputs=[])
    for step in range(1, number + 1):
        assert guard.judge(seen(step, gradients=gradients)) is None
    return guard


def seen(step, loss=3.0, *, gradients=(), total=1.0):
    return Signals(
        step=step,
        lr=1e-3,
        loss=loss,
        gradient_norm=total,
        gradients=torch.tensor(gradients),
        norm_inputs=torch.zeros(0),
    )


def test_a_gradient_that_is_zero_but_for_rounding_is_not_blamed():
    usual = [1.0] * 4 + [0.1, 3e-9, 0.1, 0.1]
    guard = rows_of(usual * 2)
    grown = [2.0] * 4 + [0.2, 4e-6, 0.2, 0.2]  # the key's bias by a thousand times, and by nothing
    there = [2.0, 2.0, 30.0, 2.0, 0.2, 3e-9, 0.2, 0.2]
    verdict = guard.judge(seen(21, gradients=grown + there, total=30.0))
    assert (verdict.sign.name, str(verdict.where)) == ("gradient_norm", "encoder.2.self.v")


def test_a_matrix_whose_gradient_is_rounding_is_not_blamed_either():
    usual = [1.0, 1e-8, 1.0, 1.0] + [0.1] * 4
    guard = rows_of(usual * 2)
    grown = [5.0, 1e-5, 5.0, 9.0] + [0.1] * 4
    verdict = guard.judge(seen(21, gradients=grown + usual, total=30.0))
    assert str(verdict.where) == "encoder.1.self.out"


@pytest.mark.parametrize(
    ("q", "k", "where"),
    [(1.0, 17.0, "encoder.2.self.q"), (17.0, 1.0, "encoder.2.self.k"), (1.0, 15.0, None),
     (1e-3, 1e-3, None), (0.0, 1.0, None), (1.0, 0.0, None)],
)  # fmt: skip
def test_queries_and_keys_are_compared_with_each_other_alone(q, k, where):
    """Sixteen times, the square of spike_ratio; what has no gradient at all did not run."""
    guard = rows_of([1.0] * 16)
    verdict = guard.judge(seen(21, gradients=[1.0] * 8 + [q, k] + [1.0] * 6))
    assert (None if verdict is None else str(verdict.where)) == where
    if verdict is not None:
        assert (verdict.sign.value, verdict.sign.limit) == (17.0, 16.0)


def test_queries_and_keys_are_not_compared_before_they_have_had_gradients_for_a_while():
    guard = rows_of([0.0] * 16)
    for step in range(21, 21 + 16):
        assert guard.judge(seen(step, gradients=[1.0] * 16)) is None
    assert guard.judge(seen(37, gradients=[1.0, 100.0] + [1.0] * 14)).sign.name == "query_key"


def test_queries_whose_gradient_is_rounding_are_not_compared_with_keys():
    guard = rows_of([1e-9, 1.0] + [1.0] * 14)
    assert guard.judge(seen(21, gradients=[1e-6, 1.0] + [1.0] * 14)) is None


@pytest.mark.parametrize(("layer", "said"), [(1, False), (2, True)])
def test_only_of_a_layer_with_others_below_it_is_something_said_of_those(layer, said):
    parameters = [Watched(Place("decoder", n, "ffn", "fc1"), True) for n in (1, 2, 3)]
    guard = Guard(GuardConfig(), parameters=parameters, norm_inputs=[])
    gradients = [1e-6 if n == layer else 1.0 for n in (1, 2, 3)]
    verdicts = [guard.judge(seen(step, gradients=gradients)) for step in range(1, 11)]
    assert ("the layers below" in verdicts[-1].message) is said


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, -50.0])
@pytest.mark.parametrize(("rise", "is_told"), [(0.15, False), (0.25, True)])
def test_a_loss_of_any_unit_is_judged_the_same(scale, shift, rise, is_told):
    """Losses of a spread of 0.2: a rise above the highest of less than that is nothing, of more it is a spike."""
    guard = Guard(GuardConfig(), parameters=[], norm_inputs=[])

    def judge(step, loss):
        return guard.judge(seen(step, scale * (loss + shift)))

    assert [judge(step, (3.1, 2.9)[step % 2]) for step in range(30)] == [None] * 30
    assert (judge(30, 3.1 + rise) is not None) is is_told


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_a_loss_that_stays_high_is_told_of_in_any_unit(scale):
    guard = Guard(GuardConfig(spike="off"), parameters=[], norm_inputs=[])
    losses = [3.0 + 0.1 * (-1) ** step for step in range(100)]
    losses += [3.5 + 0.1 * (-1) ** step for step in range(100)]  # two and a half spreads higher
    told = [guard.judge(seen(step, scale * loss)) for step, loss in enumerate(losses)]
    first = next(step for step, verdict in enumerate(told) if verdict)
    assert (told[first].kind, told[first].sign.name) == ("explosion", "loss_level")
    assert 100 < first < 100 + 30  # when half of the last fifty are high


def test_a_loss_that_has_come_to_rest_is_not_told_of_for_a_ripple():
    guard = Guard(GuardConfig(), parameters=[], norm_inputs=[])
    for step in range(200):
        assert guard.judge(seen(step, 5.0 * 0.9**step)) is None
    assert (
        guard.judge(seen(200, 0.01)) is None
    )  # many times its last losses, a part in 500 of what it was
    assert guard.judge(seen(201, 1.0)).sign.name == "loss"


def test_an_update_that_replaced_the_output_names_the_first_layer_that_it_replaced():
    guard = Guard(GuardConfig(), parameters=[], norm_inputs=[])
    layers = {
        Place("encoder", 1): 0.2,
        Place("encoder", 2): 1.5,
        Place("encoder", 3): 9.0,
        Place("decoder", 1): 4.0,
    }
    verdict = guard.judge_model_update(7, 3.0, layers=layers)
    assert (str(verdict.where), verdict.sign.value, verdict.sign.limit) == ("encoder.2", 3.0, 1.0)


def test_the_first_update_has_nothing_to_replace_and_is_not_judged():
    config = GuardConfig(explosion="roll_back")  # back to where the same update comes again
    guard = Guard(config, parameters=[], norm_inputs=[])
    assert guard.judge_model_update(1, 3.0) is None
    assert guard.judge_model_update(2, 3.0).action == "roll_back"


# Looped layers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looped(tmp_path_factory):
    """Return a DeepNorm model of two stored layers a stack that run three times, trained a little."""
    torch.manual_seed(0)
    config = make("deepnorm", 2).config.model_copy(update={"loops": 3})
    return Subject(Transformer(config, load_scheme("deepnorm")), tmp_path_factory.mktemp("looped"))


@contextmanager
def spoilt_at(module, call):
    """Let what a module returns at one of its calls of each pass be not a number."""
    calls = itertools.count()

    def spoil(_, args, output):
        return output * torch.nan if next(calls) % 3 == call else None

    handle = module.register_forward_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("place", ["encoder.2.ffn.fc2", "decoder.1.cross.out"])
def test_a_nan_of_any_pass_is_found_at_the_stored_layer(looped, place, call):
    path = of_layer("deepnorm", int(place.split(".")[1]), place)
    with spoilt_at(looped.model.get_submodule(path), call):
        verdict = looped.judge()
    assert (verdict.kind, str(verdict.where)) == ("nan", place)


def test_a_nan_that_does_not_come_again_is_laid_to_the_stack_whose_passes_it_spoilt(looped):
    path = of_layer("deepnorm", 2, "encoder.2.ffn.fc2")
    with planted(looped.model.get_submodule(path), spoilt, backward=False, once=True):
        verdict = looped.judge()
    assert str(verdict.where) == "encoder"
    assert "computed again, everything was finite" in verdict.found_by


def test_what_enters_the_first_layer_of_a_looped_stack_may_come_from_any_of_it(looped):
    sources = NormInputs(looped.model).sources
    assert sources[Place("encoder", 1, "self")] == Place("encoder", 0)
    assert Place("encoder", 2, "self") not in sources  # its own
    config = make("pre_ln", 2).config.model_copy(update={"loops": 2})
    pre = NormInputs(Transformer(config, load_scheme("pre_ln"))).sources
    assert pre[Place("decoder", 1, "self")] == Place("decoder", 0)
    assert pre[Place("decoder", 1, "ffn")] == Place("decoder", 1, "self")
    assert pre[Place("decoder", 0, "final")] == Place("decoder", 2, "ffn")
