"""The held-out text of the run that a model comes from, and what a model is worth on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepnet.data.prepare import PreparedData
from deepnet.pipeline.keeping import held_out_text
from deepnet.pipeline.measuring import probe_batch
from deepnet.pipeline.opening import recorded_recipe
from deepnet.pipeline.preparing import CACHE, Report
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.validating import HeldOut
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.transformer.models import Transformer

_CPU = torch.device("cpu")
_FLOAT32 = Precision("fp32", "cpu")


@dataclass(frozen=True)
class HeldOutText:
    """The valid part of a run, as its validations read it; measured on the CPU in float32."""

    recipe: Recipe
    data: PreparedData
    tokenization: str | None
    """Of the run's BLEU."""

    @classmethod
    def of(
        cls,
        path: str | Path,
        *,
        cache: Path = CACHE,
        trust_code: TrustCode = (),
        report: Report | None = None,
    ) -> "HeldOutText | None":
        """Return the text of a run folder, or of the one that a bundle is in; None for a bundle by itself."""
        found = [RunFolder(one) for one in (Path(path), Path(path).resolve().parent)]
        run = next((one for one in found if one.recipe_path.exists()), None)
        if run is None:
            return None
        recipe = recorded_recipe(run.path, trust_code=trust_code)
        data = held_out_text(run, recipe, cache=cache, report=report)
        return cls(recipe, data, run.read_recipe().get("bleu_tokenization"))

    def figures(self, model: Transformer, *, bleu: bool = False) -> Mapping[str, float]:
        """Return "loss", in nats per token, and what goes with it; "bleu" where it is asked for."""
        validation = self.recipe.validation.model_copy(update={"bleu": bleu})
        held_out = HeldOut(
            self.recipe.model_copy(update={"validation": validation}),
            self.data,
            ranks=Ranks(_CPU),
            precision=_FLOAT32,
            tokenization=self.tokenization,
        )
        return held_out.combine([held_out.measure(model, 0)])

    def arguments(self, *, sentences: int) -> tuple[Tensor | None, ...]:
        """Return what a model is called with, of the first sentences."""
        batch = probe_batch(self.recipe, self.data, sentences=sentences)
        return batch.source, batch.source_keep, batch.target_in
