"""A Post-LN model of ours as a MarianMTModel with the same weights."""

import torch
from torch import Tensor, nn
from transformers.models.marian.configuration_marian import MarianConfig
from transformers.models.marian.modeling_marian import MarianMTModel

from deepnet.errors import ExportError
from deepnet.transformer.models import Transformer, TransformerConfig

EOS = 0
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}


def copy_to_marian(model: Transformer, scheme: str, *, max_positions: int = 512) -> MarianMTModel:
    """Return a MarianMTModel that computes what `model` computes.

    Its padding logit is held at minus infinity: ours has none, and as a zero it would take a share
    of the softmax. Raises ExportError where Marian has no counterpart of the model.
    """
    _refuse_others(model.config, scheme)
    marian = MarianMTModel(_marian_config(model.config, max_positions)).eval()
    with torch.no_grad():
        marian.model.shared.weight.copy_(model.target_embedding.weight)
        marian.final_logits_bias[0, -1] = -torch.inf
        for ours, theirs in zip(model.encoder.layers, marian.model.encoder.layers, strict=True):
            _copy_layer(ours, theirs)
        for ours, theirs in zip(model.decoder.layers, marian.model.decoder.layers, strict=True):
            _copy_layer(ours, theirs)
    return marian


def largest_difference(
    model: Transformer, marian: MarianMTModel, source: Tensor, keep: Tensor, target_in: Tensor
) -> float:
    """Return the largest difference between the two models' logits over real ids."""
    with torch.inference_mode():
        ours = model(source, keep, target_in)
        theirs = marian(
            input_ids=source, attention_mask=keep.long(), decoder_input_ids=target_in
        ).logits
    return float((ours - theirs[..., :-1]).abs().max())


def _refuse_others(config: TransformerConfig, scheme: str) -> None:
    needed = {"architecture": "encoder_decoder", "tie_embeddings": "all", "activation": "relu"}
    needed |= {"positions": "sinusoidal", "norm": "layer_norm"}
    found = {name: value for name, value in config.model_dump().items() if name in needed}
    if scheme != "post_ln" or found != needed:
        raise ExportError(f"Marian is post_ln with {needed}; this model is {scheme} with {found}")


def _marian_config(config: TransformerConfig, max_positions: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=config.vocab_size,
        max_position_embeddings=max_positions,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_ffn_dim=config.ffn_dim,
        decoder_ffn_dim=config.ffn_dim,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        d_model=config.d_model,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=config.vocab_size - 1,
        decoder_start_token_id=config.vocab_size - 1,
        eos_token_id=EOS,
        forced_eos_token_id=None,
    )


def _copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    sites = ours.sublayers
    _copy_attention(sites["self"], theirs.self_attn, theirs.self_attn_layer_norm)
    if "cross" in sites:
        _copy_attention(sites["cross"], theirs.encoder_attn, theirs.encoder_attn_layer_norm)
    _copy(sites["ffn"].branch.fc1, theirs.fc1)
    _copy(sites["ffn"].branch.fc2, theirs.fc2)
    _copy(sites["ffn"].residual.post, theirs.final_layer_norm)


def _copy_attention(site: nn.Module, attention: nn.Module, norm: nn.Module) -> None:
    for role, name in PROJECTIONS.items():
        _copy(site.branch.get_submodule(role), attention.get_submodule(name))
    _copy(site.residual.post, norm)


def _copy(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)
