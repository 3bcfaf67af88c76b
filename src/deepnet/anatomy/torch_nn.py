"""torch.nn's Transformer, TransformerEncoder and TransformerDecoder, both norm orders."""

from collections.abc import Callable

from torch import Tensor, nn

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Placement, Sited, Slot, Weight, arrange
from deepnet.errors import AdaptError
from deepnet.schemes.base import Architecture, Role, StackName


class TransformerEncoderLayer(Sited, nn.TransformerEncoderLayer):
    """torch's encoder layer with its additions as modules; it never takes torch's fused path."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return [B, T, D] (or [T, B, D]) as torch's layer does, each addition a site."""
        x = self.through(
            "self",
            src,
            lambda x: self._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal),
        )
        return self.through("ffn", x, self._ff_block)


class TransformerDecoderLayer(Sited, nn.TransformerDecoderLayer):
    """torch's decoder layer with its additions as modules."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return [B, T, D] (or [T, B, D]) as torch's layer does, each addition a site."""
        x = self.through(
            "self",
            tgt,
            lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal),
        )
        x = self.through(
            "cross",
            x,
            lambda x: self._mha_block(
                x, memory, memory_mask, memory_key_padding_mask, memory_is_causal
            ),
        )
        return self.through("ffn", x, self._ff_block)


TorchModel = nn.Transformer | nn.TransformerEncoder | nn.TransformerDecoder


def find(model: TorchModel) -> Anatomy:
    """Return the anatomy of one of torch's three; raises AdaptError where its layers are of other classes."""
    stacks: tuple[FoundStack, ...]
    if isinstance(model, nn.Transformer):
        stacks = (_stack("encoder", model.encoder), _stack("decoder", model.decoder))
    elif isinstance(model, nn.TransformerEncoder):
        stacks = (_stack("encoder", model),)
    else:
        stacks = (_stack("decoder", model),)
    alone: Architecture = (
        "encoder_only" if isinstance(model, nn.TransformerEncoder) else "encoder_decoder"
    )
    first = stacks[0].sites[0].part.owner
    return Anatomy(
        model=model,
        family=f"torch.nn.{_stock(model)}",
        architecture=alone,
        stacks=stacks,
        make_norm=_norm_maker(first),
    )


def _stock(model: nn.Module) -> str:
    kinds = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)
    return next(kind.__name__ for kind in kinds if isinstance(model, kind))


def _stack(name: StackName, module: nn.Module) -> FoundStack:
    kind = nn.TransformerEncoderLayer if name == "encoder" else nn.TransformerDecoderLayer
    stack_kind = nn.TransformerEncoder if name == "encoder" else nn.TransformerDecoder
    if not isinstance(module, stack_kind) or not all(isinstance(x, kind) for x in module.layers):
        raise AdaptError(
            f"the {name} is a {type(module).__name__} with layers that are not torch.nn's; their additions "
            "cannot be found: build them from torch.nn's layers, or use the building blocks by hand"
        )
    layers = [_layer(layer) for layer in module.layers]
    first = module.layers[0]
    return FoundStack(
        name=name,
        module=module,
        sites=arrange(name, layers),
        d_model=first.self_attn.embed_dim,
        ffn_dim=first.linear1.out_features,
        num_heads=first.self_attn.num_heads,
        final=Slot(module, "norm", optional=True),
        switches=("use_nested_tensor",) if name == "encoder" else (),
    )


def _layer(layer: nn.Module) -> tuple[Part, ...]:
    assert isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
    placement: Placement = "pre" if layer.norm_first else "post"
    attention, ffn = _attention(layer.self_attn), _feed_forward(layer)
    if isinstance(layer, nn.TransformerEncoderLayer):
        kind: type[nn.Module] = TransformerEncoderLayer
        return (
            Part("self", layer, kind, "norm1", placement, attention),
            Part("ffn", layer, kind, "norm2", placement, ffn),
        )
    kind = TransformerDecoderLayer
    return (
        Part("self", layer, kind, "norm1", placement, attention),
        Part("cross", layer, kind, "norm2", placement, _attention(layer.multihead_attn)),
        Part("ffn", layer, kind, "norm3", placement, ffn),
    )


def _attention(attention: nn.MultiheadAttention) -> tuple[Weight, ...]:
    """Return q, k and v, slices of one matrix, and out."""
    if not attention._qkv_same_embed_dim:
        raise AdaptError(
            "the attention reads keys or values of another width (kdim, vdim); expected d_model for all three"
        )
    d = attention.embed_dim
    roles: tuple[Role, ...] = ("q", "k", "v")
    projections = tuple(
        Weight(
            role=role,
            owner=attention,
            name="in_proj_weight",
            bias_name="in_proj_bias",
            rows=(place * d, (place + 1) * d),
        )
        for place, role in enumerate(roles)
    )
    return (*projections, Weight(role="out", owner=attention.out_proj))


def _feed_forward(layer: nn.Module) -> tuple[Weight, ...]:
    return (
        Weight(role="fc1", owner=layer.get_submodule("linear1")),
        Weight(role="fc2", owner=layer.get_submodule("linear2")),
    )


def _norm_maker(layer: nn.Module) -> Callable[[int], nn.Module]:
    """Return what makes a LayerNorm with the eps and the bias of the layer's own."""
    norms = [module for module in layer.modules() if isinstance(module, nn.LayerNorm)]
    eps = norms[0].eps if norms else 1e-5
    bias = norms[0].bias is not None if norms else True
    return lambda width: nn.LayerNorm(width, eps=eps, bias=bias)
