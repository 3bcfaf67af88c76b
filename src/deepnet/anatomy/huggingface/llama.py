"""Llama: decoder-only, pre-norm with root-mean-square norms, gated feed-forward, fewer keys than queries."""

from functools import partial
from typing import Any

from torch import Tensor
from transformers.models.llama import modeling_llama as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Sited, Slot, Weight, arrange
from deepnet.anatomy.huggingface import anatomy_of
from deepnet.anatomy.rows import embedding_rows, vocabulary_rows


class LlamaDecoderLayer(Sited, stock.LlamaDecoderLayer):
    """Llama's layer with its additions as modules."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        layer: Any = self
        x = self.through("self", hidden_states, lambda x: layer.self_attn(x, *args, **kwargs)[0])
        return self.through("ffn", x, layer.mlp)


def find(model: Any) -> Anatomy:
    """Return the anatomy of a Llama."""
    base, config = model.base_model, model.config
    stack = FoundStack(
        name="decoder",
        module=base,
        sites=arrange("decoder", [_layer(layer) for layer in base.layers]),
        d_model=config.hidden_size,
        ffn_dim=config.intermediate_size,
        num_heads=config.num_attention_heads,
        final=Slot(base, "norm"),
        entry=(base.embed_tokens.weight,),
        rows=(embedding_rows(base.embed_tokens), *vocabulary_rows(model)),
    )
    norm = partial(stock.LlamaRMSNorm, eps=config.rms_norm_eps)
    return anatomy_of(model, "decoder_only", stack, norm=norm)


def _layer(layer: Any) -> tuple[Part, ...]:
    attention = (
        Weight(role="q", owner=layer.self_attn.q_proj),
        Weight(role="k", owner=layer.self_attn.k_proj),
        Weight(role="v", owner=layer.self_attn.v_proj),
        Weight(role="out", owner=layer.self_attn.o_proj),
    )
    ffn = (
        Weight(role="gate", owner=layer.mlp.gate_proj),
        Weight(role="fc1", owner=layer.mlp.up_proj),
        Weight(role="fc2", owner=layer.mlp.down_proj),
    )
    return (
        Part("self", layer, LlamaDecoderLayer, "input_layernorm", "pre", attention),
        Part("ffn", layer, LlamaDecoderLayer, "post_attention_layernorm", "pre", ffn),
    )
