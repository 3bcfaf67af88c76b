"""Foreign models after apply_scheme against our own Transformer with the same weights, in float64."""

from dataclasses import dataclass
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch import nn

from deepnet.adapt.apply import apply_scheme
from deepnet.anatomy.base import Anatomy
from deepnet.anatomy.locate import locate
from deepnet.schemes import deepnorm
from deepnet.schemes.base import Ends, StackContext, embedding_init
from deepnet.transformer.models import Transformer, TransformerConfig

ZOO = run_path(str(Path(__file__).parents[2] / "docs" / "adoption.py"), run_name="zoo")
SHAPE = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 16,
    "ffn_dim": 32,
    "num_heads": 2,
    "vocab_size": 40,
    "dropout": 0.0,
}
SCHEMES = [
    "deepnorm", "branchnorm", "pre_ln", "keel", "rezero", "mix_ln", "layernorm_scaling", "layerscale", "prores", "gpas",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EmbeddedDeepNorm(deepnorm.Scheme):
    """DeepNorm in a model whose embeddings are not multiplied and end in a norm, as BART's and BERT's do."""

    def ends(self, context: StackContext) -> Ends:
        return Ends(
            embedding_norm=context.norm(), embedding_multiplier=1.0, init=embedding_init(context)
        )


@torch.no_grad()
def copy_sites(ours: Anatomy, theirs: Anatomy) -> None:
    """Move our weights away from their start and copy them, site by site, into the adopted model."""
    for parameter in ours.model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    for mine, other in zip(ours.sites(), theirs.sites(), strict=True):
        for a, b in zip(mine.part.weights, other.part.weights, strict=True):
            assert a.role == b.role
            b.matrix().copy_(a.matrix())
            b.bias().copy_(a.bias())
        other.residual.load_state_dict(mine.residual.state_dict(), strict=False)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_torch_transformer_equals_ours(make_model, sentences, scheme, norm_first):
    source, keep, target_in = sentences
    ours = make_model(scheme, **{**SHAPE, "vocab_size": 30})
    theirs = ZOO["torch_transformer"](norm_first=norm_first)
    apply_scheme(theirs, scheme)
    copy_sites(locate(ours), locate(theirs))
    for mine, end in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        if mine.ends.final is None:
            assert end.norm is None, "the stock final norm is to go"
        else:
            end_norm = end.norm if end.norm is not None else end.layers[-1].sites["ffn"].final
            end_norm.load_state_dict(mine.ends.final.state_dict())
    ours.advance(1000)
    theirs.deepnet.advance(1000)
    x = ours.encoder.entry(ours.source_embedding(source), 0)
    y = ours.decoder.entry(ours.target_embedding(target_in), 0)
    future = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.bool)

    def logits() -> torch.Tensor:
        out = theirs(
            x.detach(),
            y.detach(),
            tgt_mask=future,
            src_key_padding_mask=~keep,
            memory_key_padding_mask=~keep,
        )
        return ours.project(out)

    close(logits(), ours.train()(source, keep, target_in))
    theirs.eval()
    close(logits(), ours(source, keep, target_in))
    with torch.inference_mode():  # torch's fused encoder path would go around the sites
        close(logits(), ours(source, keep, target_in))


@pytest.mark.parametrize("scheme", ["deepnorm", "branchnorm"])
def test_marian_logits_equal_ours(make_model, sentences, scheme):
    source, keep, target_in = (
        t.where(t != 29, 39) if t.dtype == torch.int64 else t for t in sentences
    )
    ours = make_model(scheme, **SHAPE)
    theirs = ZOO["marian"]()
    apply_scheme(theirs, scheme)
    copy_sites(locate(ours), locate(theirs))
    theirs.model.shared.weight.data.copy_(ours.source_embedding.weight)
    theirs.model.shared.weight.data[39] = 0
    ours.source_embedding.weight.data[39] = 0
    ours.advance(700)
    theirs.deepnet.advance(700)
    got = theirs(input_ids=source, attention_mask=keep.long(), decoder_input_ids=target_in).logits
    close(got[..., :-1], ours(source, keep, target_in))


def _embeddings(theirs: nn.Module, ours: nn.Module, positions: torch.Tensor) -> None:
    theirs.load_state_dict(ours.entry.norm.state_dict())
    ours.entry.positions.weight.data.copy_(positions)


def test_bart_logits_equal_ours(sentences):
    source, keep, target_in = (
        t.where(t != 29, 39) if t.dtype == torch.int64 else t for t in sentences
    )
    config = TransformerConfig(**SHAPE, positions="learned", max_positions=64)
    ours = Transformer(config, EmbeddedDeepNorm()).double()
    theirs = ZOO["bart"](max_position_embeddings=64)
    apply_scheme(theirs, "deepnorm")
    copy_sites(locate(ours), locate(theirs))
    theirs.model.shared.weight.data.copy_(ours.source_embedding.weight)
    for mine, other in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        _embeddings(other.layernorm_embedding, mine, other.embed_positions.weight[2:])
    ours.source_embedding.weight.data[39] = 0
    theirs.model.shared.weight.data[39] = 0
    got = theirs(input_ids=source, attention_mask=keep.long(), decoder_input_ids=target_in).logits
    close(got[..., :-1], ours(source, keep, target_in))


def test_bert_logits_equal_ours(sentences):
    source, keep, _ = (t.where(t != 29, 39) if t.dtype == torch.int64 else t for t in sentences)
    shape = {**SHAPE, "decoder_layers": 0, "architecture": "encoder_only", "activation": "gelu"}
    config = TransformerConfig(**shape, positions="learned", max_positions=64, norm_eps=1e-12)
    ours = Transformer(config, EmbeddedDeepNorm()).double()
    theirs = ZOO["bert"]()
    apply_scheme(theirs, "deepnorm")
    copy_sites(locate(ours), locate(theirs))
    embeddings = theirs.bert.embeddings
    embeddings.word_embeddings.weight.data.copy_(ours.source_embedding.weight)
    embeddings.word_embeddings.weight.data[39] = 0
    ours.source_embedding.weight.data[39] = 0
    types = embeddings.token_type_embeddings.weight[0]
    _embeddings(embeddings.LayerNorm, ours.encoder, embeddings.position_embeddings.weight + types)
    got = theirs(input_ids=source, attention_mask=keep.long()).logits
    close(got[keep], theirs.cls(ours.encode(source, keep))[keep])


def test_the_same_coefficients_as_our_own_model(make_model):
    ours, theirs = make_model("deepnorm", **SHAPE), ZOO["torch_transformer"]()
    apply_scheme(theirs, "deepnorm")
    for mine, other in zip(locate(ours).sites(), locate(theirs).sites(), strict=True):
        assert mine.residual.skip == other.residual.skip
        assert mine.site == other.site
    encoder, decoder = (
        theirs.encoder.layers[0].sites["self"],
        theirs.decoder.layers[0].sites["self"],
    )
    assert encoder.skip == pytest.approx(0.81 * (2**4 * 3) ** (1 / 16), rel=1e-12)
    assert decoder.skip == pytest.approx(9**0.25, rel=1e-12)
