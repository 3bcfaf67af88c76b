"""Every site and role of every named class is found, once, and by the module that owns it."""

import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import torch
import transformers
from torch import nn

from deepnet.anatomy.locate import families, locate
from deepnet.errors import AdaptError

ZOO = run_path(str(Path(__file__).parents[3] / "docs" / "adoption.py"), run_name="zoo")
MODELS = ZOO["MODELS"]
EXPECTED = {  # sites of the encoder and of the decoder, in order within a layer
    "encoder": ["self", "ffn"],
    "decoder": ["self", "cross", "ffn"],
    "alone": ["self", "ffn"],
}


@pytest.mark.parametrize("name", MODELS)
def test_sites_come_in_order(name):
    anatomy = locate(MODELS[name]())
    for stack in anatomy.stacks:
        kinds = EXPECTED[
            "decoder" if len(anatomy.stacks) == 2 and stack.name == "decoder" else "encoder"
        ]
        if name == "nn.TransformerDecoder":
            kinds = EXPECTED["decoder"]
        layers = 3 if stack.name == "decoder" and len(kinds) == 3 else 2
        assert [found.site.kind for found in stack.sites] == kinds * layers
        assert [found.site.index for found in stack.sites] == list(range(1, len(stack.sites) + 1))
        assert stack.num_layers == layers
        assert (stack.d_model, stack.ffn_dim) == (16, 32)
        for found in stack.sites:
            assert found.site.last_in_layer == (found.site.kind == "ffn")
            assert found.site.first_in_layer == (found.site.kind == "self")


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_of_the_layers_has_exactly_one_role(name):
    """Mark each found slice; what stays unmarked in a layer is a norm, a bias or a relative position."""
    anatomy = locate(MODELS[name]())
    with torch.no_grad():
        for parameter in anatomy.model.parameters():
            parameter.zero_()
        for found in anatomy.sites():
            for weight in found.part.weights:
                matrix = weight.matrix()
                matrix += 1
                assert matrix.shape[0 if weight.role in ("out", "fc2") else 1] == 16
    for stack in anatomy.stacks:
        in_layers = [
            p.detach()
            for found in stack.sites
            for p in found.part.owner.parameters()
            if p.dim() == 2
        ]
        marked = {float(p.unique()) if p.unique().numel() == 1 else -1.0 for p in in_layers}
        positions = {0.0} if name == "T5" else set()
        assert marked - positions == {1.0}


@pytest.mark.parametrize("name", MODELS)
def test_the_norm_of_each_site_is_where_it_acts(name):
    """Break a norm by a gain of zero: post, the layer then returns a constant; pre, the branch sees nothing."""
    model = MODELS[name]()
    anatomy = locate(model)
    last = list(anatomy.sites())[-1]
    pre, post = last.norms()
    assert (pre is None) != (post is None)
    norm = pre if post is None else post
    seen = []
    layer = last.part.owner
    layer.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        for table in norm.parameters():
            table.zero_()
    ZOO["outputs"](model)
    out = seen[-1][0] if isinstance(seen[-1], tuple) else seen[-1]
    assert (float(out.abs().max()) == 0.0) == (post is not None)


def test_role_comes_from_the_owner_not_from_a_name():
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    q, k, v, out = next(locate(model).sites()).part.weights
    packed = model.encoder.layers[0].self_attn.in_proj_weight
    for weight, rows in ((q, slice(0, 16)), (k, slice(16, 32)), (v, slice(32, 48))):
        assert weight.matrix().data_ptr() == packed[rows].data_ptr()
    assert out.parameter is model.encoder.layers[0].self_attn.out_proj.weight


def test_gpt2_matrices_are_turned():
    q, k, v, _ = next(locate(ZOO["gpt2"]()).sites()).part.weights
    stored = q.parameter
    assert stored.shape == (16, 48)
    torch.testing.assert_close(torch.cat([q.matrix(), k.matrix(), v.matrix()]), stored.T)


def test_our_own_model_has_an_anatomy_too(make_model):
    anatomy = locate(make_model())
    assert [found.site.kind for found in anatomy.sites()][:4] == ["self", "ffn"] * 2
    assert sum(weight.parameter.numel() for f in anatomy.sites() for weight in f.part.weights) == (
        2 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * (8 * 16 * 16 + 2 * 16 * 32)
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_module_with_a_row_per_token_is_found(name):
    """40 is the size of the vocabulary and of nothing else."""
    model = MODELS[name]()
    anatomy = locate(model)
    holders = [
        (path, isinstance(m, nn.Linear))
        for path, m in model.named_modules()
        if isinstance(m, (nn.Embedding, nn.Linear)) and len(m.weight) == 40
    ]
    found = [(anatomy.path(use.module), use.role == "vocabulary") for use in anatomy.rows()]
    assert sorted(found) == sorted(holders)
    assert bool(found) == (not name.startswith("nn."))
    assert anatomy.tie_embeddings == ("all" if found and name != "Llama" else "none")


@pytest.mark.parametrize(
    ("changes", "tying"),
    [
        ({}, "all"),
        ({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}, "decoder"),
        ({"tie_word_embeddings": False}, "none"),
    ],
)
def test_tying_is_read_off_the_parameters(changes, tying):
    assert locate(ZOO["marian"](**changes)).tie_embeddings == tying


def test_a_file_per_family():
    assert families() == ["bart", "bert", "gpt2", "llama", "marian", "opt", "roberta", "t5"]


def test_an_unknown_model_is_refused_and_its_known_part_named():
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, batch_first=True), 1
            )

    with pytest.raises(AdaptError, match=r"Tagger is none of .* model\.body"):
        locate(Tagger())


def test_half_of_an_encoder_decoder_is_refused():
    config = transformers.MarianConfig(**{**ZOO["_TWO_STACKS"], "decoder_start_token_id": 39})
    with pytest.raises(AdaptError, match="one stack of an encoder-decoder"):
        locate(transformers.MarianForCausalLM(config))
    settings = {**ZOO["_ONE_STACK"], "is_decoder": True, "add_cross_attention": True}
    with pytest.raises(AdaptError, match="cross-attention to an encoder it does not hold"):
        locate(transformers.BertLMHeadModel(transformers.BertConfig(**settings)))


def test_torch_models_need_no_transformers():
    code = (
        "import sys; from torch import nn; import deepnet;"
        "deepnet.apply_scheme(nn.Transformer(16, 2, 1, 1, 32, batch_first=True), 'deepnorm');"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
