"""RoBERTa: BERT's layers under other names."""

from typing import Any

from torch import Tensor
from transformers.models.roberta import modeling_roberta as stock

from deepnet.anatomy.base import Anatomy, Sited
from deepnet.anatomy.huggingface.bert import attention_block, feed_forward, one_stack


class RobertaAttention(Sited, stock.RobertaAttention):
    """RoBERTa's attention block with its addition as a module."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Return ([B, T, D], attention weights) as the stock block does, the addition a site."""
        return attention_block(self, hidden_states, *args, **kwargs)


class RobertaLayer(Sited, stock.RobertaLayer):
    """RoBERTa's layer with the addition after its feed-forward as a module."""

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        """Return [B, T, D] as the stock layer does, the addition a site."""
        return feed_forward(self, attention_output)


def find(model: Any) -> Anatomy:
    """Return the anatomy of a RoBERTa; raises AdaptError for a decoder with cross-attention."""
    return one_stack(model, RobertaAttention, RobertaLayer)
