"""Out of memory: one line with the step, the shapes and what to change; the last checkpoint stays."""

import pytest
import torch
from torch import nn

from deepnet.errors import DeepNetError
from deepnet.record import RunFolder
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.engine.memory import describe_shapes, memory_shortage_explained

TOO_LARGE = 2**50  # elements; no machine has four pebibytes


def cpu_shortage():
    torch.empty(TOO_LARGE)


def cuda_shortage():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee more at ...")


def numpy_shortage():
    raise MemoryError


class Greedy(nn.Sequential):
    """Asks for too much memory in the forward pass of one micro-batch."""

    def __init__(self, layers, *, failing_call, shortage):
        super().__init__(*layers)
        self.calls_left, self.shortage = failing_call, shortage

    def forward(self, x):
        self.calls_left -= 1
        if self.calls_left == 0:
            self.shortage()
        return super().forward(x)


@pytest.mark.parametrize("shortage", [cpu_shortage, cuda_shortage, numpy_shortage])
def test_the_step_the_shapes_and_the_remedy_are_named_and_nothing_is_lost(toy, shortage):
    # two micro-batches an update: the 12th call is the second of step 6
    model = Greedy(toy.model(), failing_call=12, shortage=shortage)
    with pytest.raises(DeepNetError) as error:
        toy.train(model=model)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert message.startswith("out of memory at step 6 on x [4, 4], y [4]: ")
    for key in (
        "training.recompute",
        "batching.max_tokens",
        "batching.micro_batches_per_update",
    ):
        assert key in message
    run = RunFolder.open(toy.folder / "run")
    assert [path.name for path in list_checkpoints(run.checkpoints)] == ["step_00000004"]
    result, _, _ = toy.train(model=nn.Sequential(*toy.model()), resume=True)
    assert result.step == 12


def test_a_shortage_outside_the_passes_says_where(toy):
    def greedy(*_):
        torch.empty(TOO_LARGE)

    with pytest.raises(DeepNetError, match="out of memory in the validation after step 12: "):
        toy.train("validating", validate=greedy)
    with pytest.raises(DeepNetError, match="out of memory while the model was prepared"):
        toy.train("preparing", prepare=greedy)
    with pytest.raises(DeepNetError, match="out of memory when the weights took step 1: "):
        toy.train("updating", after_update=greedy)


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), memory_shortage_explained("here"):
        raise RuntimeError("mat1 and mat2")


def test_shapes_of_what_a_batch_may_be():
    assert describe_shapes(torch.zeros(3, 5)) == "a batch [3, 5]"
    assert describe_shapes([torch.zeros(3)]) == "list"
