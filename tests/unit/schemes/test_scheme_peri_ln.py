"""Peri-LN's norm on the embedding."""

import pytest
import torch


@pytest.mark.parametrize("normed", [True, False])
def test_the_embedding_is_normed_where_wanted(make_model, sentences, normed):
    source, _, target_in = sentences
    model = make_model("peri_ln", {"embedding_norm": normed})
    for stack, ids in ((model.encoder, source), (model.decoder, target_in)):
        x = stack.entry(model.target_embedding(ids), 0)
        is_normed = torch.allclose(x.mean(-1), torch.zeros(1).double(), atol=1e-12)
        assert is_normed == normed
