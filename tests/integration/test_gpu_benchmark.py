"""The script for a card: what it counts as a model's own operations, which cells it runs, and the page it writes."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import gpu
from gpu_table import page
from peers import torch_nn
from workload import Size, model_flops

SIZE = Size("tiny", layers=2, d_model=16, ffn_dim=24, num_heads=2, sentences=3, length=5)


def test_the_operations_of_a_model_are_those_that_torch_counts_in_torch_nn():
    source, target = torch.randint(9, (3, 5)), torch.randint(9, (3, 4))
    model = torch_nn.build(SIZE).train()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        model(source, torch.ones_like(source, dtype=torch.bool), target).sum().backward()
    lengths = torch.full((3,), 5), torch.full((3,), 4)
    assert model_flops(SIZE, *lengths) == counted.get_total_flops()


def test_ours_come_first_and_no_cell_twice():
    cells = gpu.planned(gpu.SIZES)
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.model for cell in cells[: 2 * len(gpu.SIZES)]} == {gpu.OURS}
    assert {(cell.model, cell.compiled) for cell in cells} >= {
        (model, way) for model in (gpu.OURS, *gpu.PEERS) for way in ("eager", "layers", "model")
    }


@pytest.fixture
def options(tmp_path: Path) -> Namespace:
    return Namespace(
        out=tmp_path, tiny=True, device="cpu", precision="bf16", threads=1, rounds=2, minutes=10.0
    )


def test_a_cell_is_measured_or_says_what_is_missing_and_is_not_run_again(
    options, monkeypatch, capsys
):
    monkeypatch.setitem(gpu.PEERS, "marian", "not_a_package")
    monkeypatch.setattr(gpu, "SECONDS_PER_ROUND", 0.0)
    cells = [gpu.Cell("2L-2L-d32-4x8", model, "eager") for model in ("torch_nn", "marian")]
    gpu.run(cells, options)
    assert (
        "2/2 2L-2L-d32-4x8 marian eager: not_a_package is not installed" in capsys.readouterr().out
    )
    gpu.run(cells, options)
    assert capsys.readouterr().out == ""
    text = gpu.write_page(cells, options).read_text()
    assert "nothing here is a measurement" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| torch_nn | eager | ")]
    # 2 * (4 d^2 + 4 d + 2 d f + d + f + 4 d), as much again with an attention and a norm more, 8,000 d
    assert f"| {2 * (8544 + 12832) + 8000 * 32:,} |" in row


def test_a_cell_that_the_budget_cuts_short_is_left_for_the_next_call(options, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "run_cell", lambda *_, **__: pytest.fail("there was no time"))
    options.minutes = 0.0
    gpu.run(gpu.planned(gpu.TINY), options)
    assert "cells are left" in capsys.readouterr().out
    assert list(options.out.iterdir()) == []


def result(model: str, speed: float, **other: object) -> dict[str, object]:
    shared = {"size": "6L", "model": model, "compiled": "layers", "card": "NVIDIA H100 80GB HBM3"}
    made = {"date": "d", "commit": "c", "host": "h", "versions": {"torch": "2"}}
    speeds = {"median": speed, "low": speed, "high": speed}
    figures = {"parameters": 1000, "tokens_per_second": speeds, "peak_bytes": 3e9}
    times = {"warm_up_seconds": 7.5, "flops_per_second": 98.9e12}
    return {**shared, **made, **figures, **times, **other}


def test_the_page_compares_ours_with_each_peer_in_the_same_way_of_running():
    rows = [result(gpu.OURS, 300.0), result("torch_nn", 200.0), result("marian", 0, failed="why")]
    text = page(rows, command="it", tests="9 passed")
    assert "| torch_nn | layers | 1,000 | 200 [200, 200] | 1.500 | 3.00 | 10.0% | 7.5 |" in text
    assert "| marian | layers |  | why |" in text
    assert "nothing here is a measurement" not in text
    unknown = [{**row, "card": "Card 9000"} for row in rows]
    assert "which is not known of Card 9000" in page(unknown, command="it", tests="")
