"""Adopted models with unit rows against the stock model with rows normalised beforehand by numpy, in float64."""

from copy import deepcopy
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from deepnet.adapt.apply import apply_scheme
from deepnet.anatomy.locate import locate

ZOO = run_path(str(Path(__file__).parents[2] / "docs" / "adoption.py"), run_name="zoo")
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40}
MODELS = {name: make for name, make in ZOO["MODELS"].items() if not name.startswith("nn.")}
MODELS |= {
    "Marian, untied": lambda: ZOO["marian"](tie_word_embeddings=False),
    "Marian, two vocabularies": lambda: ZOO["marian"](**APART),
    "BART, scaled": lambda: ZOO["bart"](scale_embedding=True),
    "BERT, untied": lambda: ZOO["bert"](tie_word_embeddings=False),
    "OPT, narrow embeddings": lambda: ZOO["opt"](word_embed_proj_dim=8),
}
NAMES = ("shared", "embed_tokens", "wte", "word_embeddings", "lm_head", "decoder")
"""What holds tokens' rows in the stock models, by the last part of its name."""


def batch(model: nn.Module) -> dict[str, Tensor]:
    """Return ids [2, 6] that end in padding, with labels."""
    ids = torch.randint(3, 39, (2, 6), generator=torch.Generator().manual_seed(7))
    ids[1, -2:] = 39
    kept = {"input_ids": ids, "attention_mask": (ids != 39).long(), "labels": ids.flip(0)}
    return {**kept, "decoder_input_ids": ids} if model.config.is_encoder_decoder else kept


def row_names(model: nn.Module) -> list[str]:
    tables = [
        (name, m) for name, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.Linear))
    ]
    return [f"{name}.weight" for name, m in tables if name.rpartition(".")[2] in NAMES]


@torch.no_grad()
def twins(name: str) -> tuple[nn.Module, nn.Module]:
    """Return a stock model moved from its start, and the adopted one with unit rows and the same weights."""
    stock = MODELS[name]()
    for parameter in stock.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn_like(parameter)
    for row in {id(p): p for p in (stock.get_parameter(one) for one in row_names(stock))}.values():
        row *= 2.0 * torch.rand(len(row), 1) + 0.1
    ours = deepcopy(stock)
    placement = next(locate(stock).sites()).part.placement
    scheme = "post_ln" if placement == "post" else "pre_ln"
    apply_scheme(ours, scheme, initialize=True, ends={"rows": "unit"})
    for theirs, mine in zip(locate(stock).sites(), locate(ours).sites(), strict=True):
        for a, b in zip(theirs.part.weights, mine.part.weights, strict=True):
            b.matrix().copy_(a.matrix())
            if a.bias() is not None:
                b.bias().copy_(a.bias())
        norm = mine.residual.post if placement == "post" else mine.residual.pre
        norm.load_state_dict(theirs.part.owner.get_submodule(theirs.part.norm).state_dict())
    for theirs, mine in zip(locate(stock).stacks, locate(ours).stacks, strict=True):
        if theirs.final is not None and theirs.final.get() is not None:
            mine.final.get().load_state_dict(theirs.final.get().state_dict())
    for one in row_names(stock):
        ours.get_parameter(one).copy_(stock.get_parameter(one))
    return stock, ours


def normalised(rows: Tensor) -> Tensor:
    values = rows.detach().numpy()
    return torch.from_numpy(values / np.sqrt(np.square(values).sum(1, keepdims=True)))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_a_stock_model_with_normalised_rows(name):
    stock, ours = twins(name)
    with torch.no_grad():
        got, before = ours(**batch(ours)).logits, stock(**batch(stock)).logits
        tables = {id(p): p for p in (stock.get_parameter(one) for one in row_names(stock))}
        for rows in tables.values():
            rows.copy_(normalised(rows))
        expected = stock(**batch(stock)).logits
    assert float((before - expected).abs().max()) > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_through_a_division_by_the_length(name):
    stock, ours = twins(name)
    ours(**batch(ours)).loss.backward()
    stored: dict[int, Tensor] = {}
    used: dict[str, Tensor] = {}
    for one in row_names(stock):
        table = stock.get_parameter(one)
        rows = stored.setdefault(id(table), table.detach().clone().requires_grad_())
        used[one] = rows / rows.square().sum(1, keepdim=True).sqrt()
    functional_call(stock, used, kwargs=batch(stock), tie_weights=False).loss.backward()
    for one in row_names(stock):
        expected = stored[id(stock.get_parameter(one))].grad
        if expected is not None:  # the table that Marian and BART share is not read itself
            assert float(expected.abs().max()) > 1e-6
            torch.testing.assert_close(
                ours.get_parameter(one).grad, expected, rtol=1e-9, atol=1e-12
            )
