"""The small parts of the loop: precision, recompute, averages, signals, display, cursor."""

import io
import math
import os
import signal
import sys
import threading
from itertools import islice

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from deepnet.errors import ConfigError
from deepnet.training.batches import updates_from
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.precision import reason_for_auto, resolve_precision
from deepnet.training.engine.recompute import recomputed
from deepnet.training.interruption import Interruption
from deepnet.training.optimization.averaging import MovingAverage, average_tensors
from deepnet.training.sinks.progress import ProgressDisplay, format_seconds, seconds_left
from deepnet.training.sinks.tensorboard import TensorBoardSink
from deepnet.training.state import TrainingState

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "width", "able", "expected"),
    [
        ("fp32", 1024, True, torch.float32),
        ("bf16", 64, False, torch.bfloat16),
        ("auto", 1024, True, torch.bfloat16),
        ("auto", 512, True, torch.bfloat16),
        ("auto", 511, True, torch.float32),
        ("auto", 1024, False, torch.float32),
    ],
)
def test_precision_is_the_type_of_a_product(monkeypatch, name, width, able, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able})
    precision = resolve_precision(name, device=CPU, width=width)
    with precision.autocast():
        assert nn.Linear(2, 2)(torch.zeros(1, 2)).dtype == expected
    assert not precision.scaler().is_enabled()


@pytest.mark.parametrize(
    ("width", "able", "said"),
    [(511, True, "below d_model 512"), (512, True, "has products"), (512, False, "lacks products")],
)
def test_the_reason_for_a_precision_is_that_of_the_rule(monkeypatch, width, able, said):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": able})
    assert said in reason_for_auto(device=CPU, width=width)


def test_fp16_on_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="'fp16' needs a GPU"):
        resolve_precision("fp16", device=CPU)


def test_recompute_gives_the_same_gradients_and_dropout_and_keeps_less():
    block = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))

    def gradients():
        torch.manual_seed(3)
        block.zero_grad()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.numel()) or t, lambda t: t
        ):
            output = block(x)
        output.square().sum().backward()
        return [output.detach()] + [p.grad.clone() for p in block.parameters()], sum(kept)

    plain, plain_kept = gradients()
    with recomputed([block]):
        again, again_kept = gradients()
        with torch.no_grad():
            block(x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert again_kept < plain_kept
    assert "forward" not in vars(block)


def test_a_moving_average_is_the_geometric_sum_of_what_it_saw():
    model = nn.Linear(1, 1, bias=False)
    seen = [0.5, -1.0, 2.0]
    nn.init.constant_(model.weight, 4.0)
    average = MovingAverage(dict(model.named_parameters()), decay=0.9)
    for step, value in enumerate(seen, start=1000):
        nn.init.constant_(model.weight, value)
        average.update(step)
    expected = 0.9**3 * 4 + 0.1 * (0.81 * 0.5 + 0.9 * -1.0 + 2.0)
    with average.in_place():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 2.0
    assert average.tensors["weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks(number):
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested
    assert signal.getsignal(number) == before


def test_a_second_sigterm_does_not_kill_a_process_that_is_saving():
    with Interruption() as interruption:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested


def test_the_first_weights_are_soon_forgotten():
    """With a constant decay of 0.999, 74% of them would be left after 300 updates."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    average = MovingAverage(dict(model.named_parameters()), decay=0.999)
    nn.init.zeros_(model.weight)
    for step in range(300):
        average.update(step)
        # the product of (1 + t) / (10 + t) over t < n is 9! n! / (n + 9)!
        n = step + 1
        left = math.factorial(9) * math.factorial(n) / math.factorial(n + 9)
        assert average.tensors["weight"].item() == pytest.approx(left, rel=1e-4)
    assert average.tensors["weight"].item() < 1e-15


@pytest.mark.parametrize(("step", "decay"), [(0, 0.1), (1, 2 / 11), (8989, 0.999), (9000, 0.999)])
def test_the_decay_of_an_average_rises_to_what_was_asked_for(step, decay):
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    average = MovingAverage(dict(model.named_parameters()), decay=0.999)
    nn.init.zeros_(model.weight)
    average.update(step)
    assert average.tensors["weight"].item() == pytest.approx(decay, rel=1e-6)


def test_a_computation_is_broken_off_by_a_signal_and_not_begun_after_one():
    begun = []

    def compute():
        begun.append(True)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:  # whatever it does about errors
            pytest.fail("a signal is no error of the computation")
        return "done"

    with Interruption() as interruption:
        assert interruption.unless_requested(lambda: "done") == "done"
        assert interruption.unless_requested(compute) is None
        assert interruption.unless_requested(compute) is None
    assert begun == [True]


@pytest.mark.parametrize("able", [True, False])
def test_bf16_is_refused_where_a_gpu_has_none(monkeypatch, able):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: able)
    device = torch.device("cuda")
    if able:
        assert resolve_precision("bf16", device=device).name == "bf16"
    else:
        with pytest.raises(ConfigError, match="'bf16' is not possible on this GPU"):
            resolve_precision("bf16", device=device)


def test_a_second_ctrl_c_aborts():
    with Interruption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_off_the_main_thread_no_signal_is_caught():
    seen = []
    before = signal.getsignal(signal.SIGINT)

    def run():
        with Interruption() as interruption:
            seen.append((interruption.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


RECORD = {
    "step": 1200,
    "epoch": 3,
    "seconds": 60.0,
    "progress": 0.25,
    "loss": 2.5,
    "lr": 5e-4,
    "gradient_norm": 1.5,
    "skipped_updates": 0,
    "tokens_per_second": 4920.0,
}


def test_off_a_terminal_each_record_is_one_plain_line(capsys):
    with ProgressDisplay(Console(force_terminal=False, width=40)) as display:
        display(RECORD)
        display({"step": 1300, "epoch": 3, "seconds": 70.0, "validation_loss": 2.25})
    first, second = capsys.readouterr().out.splitlines()
    for part in ("1,200", "loss 2.5000", "lr 5.00e-04", "norm 1.500", "4,920", "3:00 left"):
        assert part in first
    assert "validation loss 2.25" in second


def test_on_a_terminal_only_validations_stay():
    screen = io.StringIO()
    with ProgressDisplay(Console(force_terminal=True, width=120, file=screen)) as display:
        display(RECORD)
        display({"step": 1300, "epoch": 3, "seconds": 70.0, "validation_loss": 2.25})
    erase_line = "\x1b[2K"
    assert screen.getvalue().count("validation loss 2.25") == 1
    assert erase_line in screen.getvalue().split("left")[-1]


def test_time_left():
    assert seconds_left(seconds=60, progress=0.25) == 180
    assert seconds_left(seconds=60, progress=0.0) is None
    assert [format_seconds(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_progress_follows_the_nearest_limit():
    state = TrainingState(step=30, epoch=1, update=5, seconds=60.0)
    config = TrainingConfig(max_steps=100, max_epochs=3, max_minutes=4)
    assert state.progress(config, updates_per_epoch=10) == 0.5


def test_tensorboard_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"deepnet-transformers\[tensorboard\]"):
        TensorBoardSink(tmp_path)


def scalars(folder):
    """What TensorBoard shows: {name: {step: value}}."""
    shown = EventAccumulator(str(folder)).Reload()
    return {
        name: {event.step: event.value for event in shown.Scalars(name)}
        for name in shown.Tags()["scalars"]
    }


def test_tensorboard_shows_every_number_at_its_step(tmp_path):
    records = [
        {"step": 10, "loss": 3.5, "gradient_norm": None},
        {"step": 20, "loss": 2.25, "gradient_norm": 0.5, "validation_loss": 4.0},
        {"step": 30, "loss": 9.0},
    ]
    with TensorBoardSink(tmp_path / "events") as sink:
        assert not (tmp_path / "events").exists()
        for record in records:
            sink(record)
    assert scalars(tmp_path / "events") == {
        "loss": {10: 3.5, 20: 2.25, 30: 9.0},
        "gradient_norm": {20: 0.5},
        "validation_loss": {20: 4.0},
    }
    with TensorBoardSink(tmp_path / "events") as sink:  # resumed after step 20
        sink({"step": 25, "loss": 2.0})
    assert scalars(tmp_path / "events")["loss"] == {10: 3.5, 20: 2.25, 25: 2.0}


def test_the_cursor_goes_on_where_it_was_and_over_the_end_of_an_epoch(toy):
    loader = toy.updates(3)
    found = [
        (p.epoch, p.index, p.ends_epoch) for p in islice(updates_from(loader, epoch=0, start=2), 5)
    ]
    assert found == [(0, 2, True), (1, 0, False), (1, 1, False), (1, 2, True), (2, 0, False)]
    after_the_last = next(updates_from(loader, epoch=0, start=3))
    assert (after_the_last.epoch, after_the_last.index) == (1, 0)


def test_an_average_over_checkpoints_is_summed_in_float64_and_counters_are_the_last():
    groups = [
        {"w": torch.tensor([value]), "step": torch.tensor(step)}
        for value, step in ((1e8, 10), (1.0, 20), (-1e8, 30))
    ]
    found = average_tensors(groups)
    assert found["w"].dtype == torch.float32
    assert found["w"].item() == pytest.approx(1 / 3)
    assert found["step"].item() == 30
