"""The shape of a Transformer, as recipes and bundles say it."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.left_open import LeftOpen
from deepnet.schemes.base import Architecture
from deepnet.transformer.feed_forward import Activation
from deepnet.transformer.norms import NormKind
from deepnet.transformer.positions.base import ADDED_POSITIONS, PositionKind

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
_LAYERS = ("encoder_layers", "decoder_layers")


class TransformerConfig(Section):
    """The shape of a Transformer."""

    architecture: Architecture = "encoder_decoder"
    """Which stacks there are; an encoder-decoder translates."""
    encoder_layers: Annotated[int, Field(ge=0)] = 6
    """Layers of the encoder; 0 in a decoder-only model."""
    decoder_layers: Annotated[int, Field(ge=0)] = 6
    """Layers of the decoder; 0 in an encoder-only model."""
    loops: Annotated[int, Field(ge=1, le=1000)] = 1
    """Times that all layers of each stack run, one pass over them after the other, with the same weights."""
    coefficient_depth: Literal["unrolled", "stored"] = "unrolled"
    """Layers that the scheme plans for where loops is above 1: all that run, or those that are stored."""
    d_model: Count = 512
    """Width of the stream."""
    ffn_dim: Count = 2048
    """Width inside the feed-forward branch."""
    num_heads: Count = 8
    """Attention heads; they share d_model evenly."""
    num_kv_heads: Annotated[int, Field(ge=0)] = 0
    """Heads of keys and values, which attention heads share evenly (grouped-query attention); 0: as many as those."""
    vocab_size: Annotated[int, Field(ge=0)] = 0
    """Ids of the (target) vocabulary, padding included; 0 takes the tokenizer's."""
    source_vocab_size: Annotated[int, Field(ge=0)] = 0
    """Ids of the source vocabulary where it is another; 0 means one vocabulary for both sides."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which matrices are one: source, target and output ("all"), target and output ("decoder"), or none."""
    positions: Annotated[PositionKind, LeftOpen()] = "sinusoidal"
    """How positions enter: fixed sinusoids or learned vectors are added to the embedding; self-attention has rotary
    angles, penalties by distance (alibi) or trained biases by distance (relative, T5's). A recipe that translates and
    says nothing gets rotary (docs/ends.md)."""
    max_positions: Count = 1024
    """Longest sentence, in tokens, that learned positions can hold; the other kinds have no limit."""
    decoder_start: Annotated[Literal["auto", "padding", "eos"], LeftOpen(before="padding")] = "auto"
    """What stands before the first token of a translation: padding, whose row is zero, or eos. auto: padding where
    positions are added to it, else eos, as the gradient of a norm at zero is hundreds of times too large."""
    activation: Activation = "relu"
    """Activation of the feed-forward branch; swiglu is gated and has a third matrix."""
    norm: NormKind = "layer_norm"
    """Kind of norm."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance inside every norm."""
    dropout: Rate = 0.1
    """Dropout rate on embeddings and on every branch's output."""
    attention_dropout: Rate = 0.0
    """Dropout rate on attention weights."""
    activation_dropout: Rate = 0.0
    """Dropout rate after the feed-forward activation."""

    @property
    def starts_from_eos(self) -> bool:
        """Whether eos stands before the first token of a translation, not padding."""
        is_open = self.decoder_start == "auto" and self.positions not in ADDED_POSITIONS
        return self.architecture == "encoder_decoder" and (is_open or self.decoder_start == "eos")

    @property
    def running_layers(self) -> dict[str, Any]:
        """Layers of each stack that run, by the key that says how many are stored."""
        return {key: getattr(self, key) * self.loops for key in _LAYERS}

    @property
    def planned_layers(self) -> dict[str, Any]:
        """Layers of each stack that a scheme plans for, by the same keys."""
        if self.coefficient_depth == "unrolled":
            return self.running_layers
        return {key: getattr(self, key) for key in _LAYERS}

    @model_validator(mode="after")
    def _consistent(self) -> "TransformerConfig":
        if self.loops == 1 and self.coefficient_depth != "unrolled":
            raise ValueError(
                f"coefficient_depth = '{self.coefficient_depth}' has no effect with loops = 1; leave it out"
            )
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}"
            )
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.positions == "rotary" and self.d_model // self.num_heads % 2:
            raise ValueError("rotary positions need an even head size (d_model / num_heads)")
        wanted = {"encoder": self.encoder_layers > 0, "decoder": self.decoder_layers > 0}
        for stack, present in wanted.items():
            if present != (self.architecture in ("encoder_decoder", f"{stack}_only")):
                layers = f"{stack}_layers {getattr(self, f'{stack}_layers')}"
                raise ValueError(f"{layers} does not fit the architecture '{self.architecture}'")
        if self.source_vocab_size and self.tie_embeddings == "all":
            raise ValueError('two vocabularies cannot share rows: set tie_embeddings to "decoder"')
        return self
