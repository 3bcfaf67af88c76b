"""Token embeddings and the vocabulary projection, tied or not; the last id is padding and its row stays zero."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A row [D] per id; with `unit_rows`, rows enter every use at unit length (FixNorm, arXiv 1910.05895)."""

    def __init__(self, vocab_size: int, d_model: int, *, unit_rows: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.padding = vocab_size - 1
        self.unit_rows = unit_rows

    def rows(self) -> Tensor:
        """Return the rows [V, D] as every use sees them."""
        return F.normalize(self.weight, dim=1) if self.unit_rows else self.weight

    def forward(self, x: Tensor, *, project: bool = False) -> Tensor:
        """Return the rows [B, T, D] of ids [B, T]; padding's row is zero and gets no gradient.

        To `project`, return the logits [B, T, V - 1] of `x` [B, T, D] over every id but padding: what gathers or
        converts a module's weights around its forward has to see this use as well.
        """
        if project:
            return F.linear(x, self.rows()[:-1])
        return F.embedding(x, self.rows(), padding_idx=self.padding)


class VocabularyProjection(nn.Module):
    """Logits [B, T, V - 1] over every id but padding, from the rows of an embedding or of its own."""

    def __init__(self, embedding: TokenEmbedding, *, tied: bool) -> None:
        super().__init__()
        vocab_size, d_model = embedding.weight.shape
        own = TokenEmbedding(vocab_size, d_model, unit_rows=embedding.unit_rows)
        self.rows = embedding if tied else own
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of `x` [B, T, D]; padding, the last id, is left out of the softmax."""
        logits: Tensor = self.rows(x, project=True)
        return logits
