"""A model in parts, with and without offload, trains on one device as a whole one, and its checkpoints are whole."""

import pytest
import torch
import torch.distributed as dist

from deepnet.record import read_jsonl

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _no_group_of_others():
    """Begin and end without a group of processes: that of another test may be for another device."""
    leave()
    yield
    leave()


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()


def losses(run):
    return [record["loss"] for record in read_jsonl(run.metrics_path)]


# float32: kernels that add up in any order, twelve updates on; bf16: matrices are rounded as a whole, not by autocast
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-4), ("bf16", 2e-2)])
@pytest.mark.parametrize("offload", [False, True])
def test_it_trains_as_a_whole_one_and_goes_on_as_one(train, device, offload, precision, error):
    if offload and device.type == "cpu":
        pytest.skip("on a CPU everything is in main memory already, and offload is refused")
    given = {"precision": precision, "clip_norm": 0.5, "ema_decay": 0.9}
    _, whole = train("whole", **given)
    _, parts = train("parts", **given, engine="sharded", offload=offload, max_steps=6)
    assert losses(parts) == pytest.approx(losses(whole)[:6], rel=error)
    model, parts = train("parts", **given, resume=True)
    assert losses(parts) == pytest.approx(losses(whole), rel=error)
    assert all(type(parameter) is torch.nn.Parameter for parameter in model.parameters())
