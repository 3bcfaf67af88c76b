"""GPT-2: decoder-only, pre-norm; its matrices are stored [in, out] and q, k, v packed into one."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.gpt2 import modeling_gpt2 as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Sited, Slot, Weight, arrange
from deepnet.anatomy.huggingface import anatomy_of, refuse_lone_decoder
from deepnet.anatomy.rows import embedding_rows, vocabulary_rows
from deepnet.schemes.base import Role


class GPT2Block(Sited, stock.GPT2Block):
    """GPT-2's block with its additions as modules."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_cache: bool | None = False,
        **kwargs: Any,
    ) -> Tensor:
        """Return [B, T, D] as the stock block does, each addition a site."""
        inputs = {"past_key_values": past_key_values, "attention_mask": attention_mask, **kwargs}
        block: Any = self
        x = self.through(
            "self", hidden_states, lambda x: block.attn(x, use_cache=use_cache, **inputs)[0]
        )
        return self.through("ffn", x, block.mlp)


def find(model: Any) -> Anatomy:
    """Return the anatomy of a GPT-2; raises AdaptError for one with cross-attention."""
    refuse_lone_decoder(model)
    base, config = model.base_model, model.config
    stack = FoundStack(
        name="decoder",
        module=base,
        sites=arrange("decoder", [_block(block) for block in base.h]),
        d_model=config.hidden_size,
        ffn_dim=base.h[0].mlp.c_fc.nf,
        num_heads=config.num_attention_heads,
        final=Slot(base, "ln_f"),
        entry=(base.wte.weight, base.wpe.weight),
        rows=(embedding_rows(base.wte), *vocabulary_rows(model)),
    )
    norm = partial(nn.LayerNorm, eps=config.layer_norm_epsilon)
    return anatomy_of(model, "decoder_only", stack, norm=norm)


def _block(block: Any) -> tuple[Part, ...]:
    d = block.attn.embed_dim
    roles: tuple[Role, ...] = ("q", "k", "v")
    packed = tuple(
        Weight(role=role, owner=block.attn.c_attn, rows=(i * d, (i + 1) * d), transposed=True)
        for i, role in enumerate(roles)
    )
    attention = (*packed, Weight(role="out", owner=block.attn.c_proj, transposed=True))
    ffn = (
        Weight(role="fc1", owner=block.mlp.c_fc, transposed=True),
        Weight(role="fc2", owner=block.mlp.c_proj, transposed=True),
    )
    return (
        Part("self", block, GPT2Block, "ln_1", "pre", attention),
        Part("ffn", block, GPT2Block, "ln_2", "pre", ffn),
    )
