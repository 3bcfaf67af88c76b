"""A recipe's validation, dealt out to three ranks, finds what one finds alone."""

import pytest
import torch

from deepnet.pipeline.preparing import build_model, prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.validating import HeldOut
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks


@pytest.mark.parametrize("count", [2, 3, 40])
def test_shares_together_are_the_whole(corpus, cache, count):
    changes = ["validation.bleu=true", "batching.max_tokens=64", "data.max_sentence_tokens=64"]
    recipe = load_recipe(corpus / "recipe.toml", changes)
    data = prepare_data(recipe, cache=cache)
    model = build_model(recipe, data.tokenizers).eval()

    def held_out(rank, world_size):
        ranks = Ranks(torch.device("cpu"), rank, world_size)
        return HeldOut(recipe, data, ranks=ranks, precision=Precision("fp32", "cpu"))

    alone = held_out(0, 1)
    whole = alone.combine([alone.measure(model, 1)])
    dealt = [held_out(rank, count).measure(model, 1) for rank in range(count)]
    assert sum(len(share.translations) for share in dealt) == len(data.lines("valid")[0])
    assert max(share.loss.num_tokens for share in dealt) < sum(s.loss.num_tokens for s in dealt)
    together = alone.combine(dealt)
    assert together["loss"] == pytest.approx(whole["loss"], rel=1e-9)
    assert together["bleu"] == whole["bleu"]
