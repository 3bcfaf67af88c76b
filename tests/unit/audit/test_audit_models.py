"""Nothing is found on models that are what they are: ours, torch's and Hugging Face's; what is measured is right."""

import json
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch import nn

import deepnet
from deepnet.audit.inputs import likely_inputs
from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import list_schemes, scheme_class
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.models import Transformer, TransformerConfig

NOT_LOCATED = {"attn_res", "hyper_connections", "mhc"}
"""Schemes whose streams are mixed by products, with no addition of a branch to what it was computed from."""
IDS, TARGET = torch.randint(2, 50, (2, 7)), torch.randint(2, 50, (2, 5))


def ours(name: str, architecture: str, **options: object) -> tuple[Transformer, tuple]:
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=0 if architecture == "decoder_only" else 3,
        decoder_layers=0 if architecture == "encoder_only" else 2,
        d_model=32,
        ffn_dim=64,
        num_heads=2,
        vocab_size=60,
        tie_embeddings="none",
    )
    inputs = (IDS, None, TARGET) if architecture == "encoder_decoder" else (IDS,)
    return Transformer(config, scheme_class(name)(**options)), inputs


@pytest.mark.parametrize("name", list_schemes())
def test_our_own_models_are_passed_with_and_without_their_claim(name):
    for architecture in scheme_class(name).architectures:
        model, inputs = ours(name, architecture)
        if name == "ngpt":  # its rows are given unit length before step 0
            model.scheme.after_update(model)
        assert deepnet.audit(model, inputs).findings == []
        report = deepnet.audit(model, inputs, claims=name)
        assert report.findings == []
        if name == "value_embeddings":  # its gates are not taken for projections of values
            assert report.notes == []
            assert any("value_table.gate" in what for what in report.not_located)
        num_sites = {"encoder_decoder": 12, "encoder_only": 6, "decoder_only": 4}[architecture]
        # the low-rank maps of a skip look like branches, and so do values beside those that they came from
        if name in ("laurel", "value_residual"):
            assert report.not_located
            continue
        assert len(report.sites) == (0 if name in NOT_LOCATED else num_sites)
        assert any(what.startswith("residual sites") for what in report.not_located) == (
            name in NOT_LOCATED
        )


@pytest.mark.parametrize(("num_heads", "d_model"), [(4, 64), (8, 512), (12, 768)])
def test_a_gate_of_values_is_no_projection_at_the_sizes_people_train(num_heads, d_model):
    torch.manual_seed(1)
    config = TransformerConfig(
        architecture="decoder_only", encoder_layers=0, decoder_layers=2, d_model=d_model,
        ffn_dim=64, num_heads=num_heads, vocab_size=40, dropout=0.0,
    )  # fmt: skip
    model = Transformer(config, scheme_class("value_embeddings")())
    report = deepnet.audit(model, (torch.randint(39, (2, 5)),), claims="value_embeddings")
    assert (report.findings, report.notes) == ([], [])


def test_layers_that_share_their_matrices_are_refused_in_one_line():
    model, inputs = ours("deepnorm", "encoder_only")
    config = model.config.model_copy(update={"loops": 2})
    looped = nn.Sequential(Transformer(config, model.scheme))
    with pytest.raises(ConfigError, match=r"run 2 times .*audit the same shape with loops = 1"):
        deepnet.audit(looped, inputs, claims="deepnorm")


@pytest.mark.parametrize(
    "shape",
    [{"num_kv_heads": 1}, *({"positions": kind} for kind in ("rotary", "alibi", "relative"))],
)
def test_our_own_kinds_of_attention_are_passed(shape):
    torch.manual_seed(1)
    config = TransformerConfig(
        encoder_layers=3, decoder_layers=2, d_model=32, ffn_dim=64, num_heads=4, vocab_size=60, **shape
    )  # fmt: skip
    model = Transformer(config, scheme_class("deepnorm")())
    report = deepnet.audit(model, (IDS, None, TARGET), claims="deepnorm")
    assert report.findings == []
    assert len(report.sites) == 12


@pytest.mark.parametrize(
    ("name", "options", "norm", "skip", "branch"),
    [
        ("deepnorm", {}, "post", 4**0.25, 1.0),
        ("keel", {}, "pre+post", 4.0, 1.0),
        ("branchnorm", {}, "post", 1.0, 0.0),
        ("rezero", {}, "none", 1.0, 0.0),
        ("peri_ln", {}, "pre+out", 1.0, 1.0),
        ("scale_norm", {}, "pre", 1.0, 1.0),
        ("layerscale", {"init": 0.5}, "pre", 1.0, 0.5),
        ("prores", {"schedule": "fixed_L"}, "pre", 1.0, 0.5),
        ("gpas", {"base": "deepnorm"}, "post", 4**0.25, 1.0),
        ("laurel", {"form": "rw"}, "pre", 1.0, 1.0),
        ("ngpt", {"step": 0.1}, "out+post", 0.9, 0.1),
    ],
)
def test_a_site_is_measured_where_a_name_could_not_tell(name, options, norm, skip, branch):
    model, inputs = ours(name, "decoder_only", **options)
    last = deepnet.audit(model, inputs).sites[2]
    assert last.norm == norm
    assert last.skip == pytest.approx(skip, abs=1e-7)
    assert last.branch == pytest.approx(branch, abs=1e-7)


def test_another_scheme_than_claimed_is_found():
    for claims, where in (("pre_ln", "norms"), ("deepnorm", "scale"), ("t_fixup", "norms")):
        model, inputs = ours("post_ln", "encoder_decoder")
        found = deepnet.audit(model, inputs, claims=claims).findings
        assert any(where in finding.what for finding in found)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_torch_is_passed_and_located(norm_first, batch_first):
    model = nn.Transformer(32, 4, 2, 3, 64, batch_first=batch_first, norm_first=norm_first)
    report = deepnet.audit(model, (torch.randn(6, 6, 32), torch.randn(6, 6, 32)))
    assert report.findings == report.not_located == []
    assert {(s.norm, s.skip, s.branch) for s in report.sites} == {
        ("pre" if norm_first else "post", 1.0, 1.0)
    }
    assert [s.where.split(" (")[0] for s in report.sites[4:7]] == [
        "decoder 1 self",
        "decoder 1 cross",
        "decoder 1 ffn",
    ]


def test_rows_of_a_packed_projection_are_told_by_their_use():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    roles = {r.role: r for r in deepnet.audit(model, torch.randn(2, 5, 32)).roles}
    assert roles["q"].where == "self_attn.in_proj_weight[0:32]"
    assert roles["v"].where == "self_attn.in_proj_weight[64:96]"
    rows = model.self_attn.in_proj_weight[64:96].detach().double()
    assert roles["v"].std == pytest.approx(rows.square().mean().sqrt().item(), rel=1e-12)
    assert roles["fc1"].where == "linear1.weight"


def stock(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    one = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 60,
    }
    two = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 60}
    two |= {f"{s}_attention_heads": 4 for s in ("encoder", "decoder")}
    two |= {f"{s}_ffn_dim": 64 for s in ("encoder", "decoder")}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 59}
    configs = {
        "BertForMaskedLM": ("BertConfig", one),
        "RobertaForMaskedLM": ("RobertaConfig", one),
        "LlamaForCausalLM": ("LlamaConfig", {**one, "num_key_value_heads": 2}),
        "GPTNeoXForCausalLM": ("GPTNeoXConfig", one),
        "GPT2LMHeadModel": (
            "GPT2Config",
            {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60},
        ),
        "OPTForCausalLM": (
            "OPTConfig",
            {**one, "ffn_dim": 64, "word_embed_proj_dim": 32},
        ),
        "BartForConditionalGeneration": ("BartConfig", two),
        "MarianMTModel": ("MarianConfig", {**two, "decoder_start_token_id": 59}),
        "T5ForConditionalGeneration": (
            "T5Config",
            {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
            | {"vocab_size": 60, "decoder_start_token_id": 0},
        ),
    }
    kind, options = configs[name]
    config = vars(transformers)[kind] if kind in vars(transformers) else getattr(transformers, kind)
    return getattr(transformers, name)(config(**{**options, **special}))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "norm", "num_sites"),
    [
        ("BertForMaskedLM", "post", 4),
        ("RobertaForMaskedLM", "post", 4),
        ("GPT2LMHeadModel", "pre", 4),
        ("OPTForCausalLM", "pre", 4),
        ("LlamaForCausalLM", "pre", 4),
        ("GPTNeoXForCausalLM", "pre", 2),
        ("BartForConditionalGeneration", "post", 10),
        ("MarianMTModel", "post", 10),
        ("T5ForConditionalGeneration", "pre", 10),
    ],
)
def test_hugging_face_is_passed_and_located(name, norm, num_sites):
    report = deepnet.audit(stock(name))
    assert report.findings == []
    assert [(s.norm, s.skip, s.branch) for s in report.sites] == [(norm, 1.0, 1.0)] * num_sites
    assert {"q", "k", "v", "out", "fc1", "fc2"} <= {r.role for r in report.roles}
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["findings"] == []


def test_the_model_is_left_as_it_was():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fused = torch.backends.mha.get_fastpath_enabled()
    deepnet.audit(model, torch.randn(2, 5, 32), claims="deepnorm")
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled() == fused
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == torch.float32


def test_what_has_no_residual_site_is_said_to_have_none():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    report = deepnet.audit(model, torch.randn(2, 3, 8), claims="deepnorm")
    assert report.sites == []
    assert any(text.startswith("residual sites") for text in report.not_located)


def test_what_cannot_be_run_is_refused_with_every_attempt():
    class Picky(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            raise ValueError("never")

    with pytest.raises(ConfigError, match=r"token ids \[2, 7\]: ValueError: never"):
        deepnet.audit(Picky(20, 8))
    assert len(list(likely_inputs(Picky(20, 8)))) == 2


# Ends chosen beside the scheme --------------------------------------------------------------------------------------

ENDS = [{"rows": "unit"}, {"embedding_std": 0.5}, {"embedding_lr_multiplier": 30.0}]
OUR_SHAPE = {"encoder_layers": 3, "decoder_layers": 2, "d_model": 32, "ffn_dim": 64}
OUR_SHAPE |= {"num_heads": 2, "vocab_size": 60}
TYINGS = {"all": 2, "decoder": 3, "none": 3}
"""How many embeddings and vocabularies an audit lists."""
STDS = [32**-0.5, 0.5, 32**-0.5]
"""What the ends' numbers should have: unit rows are measured as they are used."""


def end_reports(report) -> list:
    return [r for r in report.roles if r.role in ("embedding", "vocabulary")]


@pytest.mark.parametrize(("ends", "std"), list(zip(ENDS, STDS, strict=True)), ids=str)
@pytest.mark.parametrize(
    ("name", "tying"),
    [(name, tying) for name in ("deepnorm", "post_ln", "pre_ln") for tying in TYINGS]
    + [("r_fixup", "all"), ("r_fixup", "decoder")],  # where it is not tied, it fixes the vocabulary
)
def test_ends_that_were_chosen_are_expected(name, tying, ends, std):
    config = TransformerConfig(**OUR_SHAPE, tie_embeddings=tying)
    model = Transformer(config, scheme_class(name)(), ends=EndsConfig(**ends))
    report = deepnet.audit(model, (IDS, None, TARGET), claims=name)
    assert report.findings == report.not_located == []
    assert len(end_reports(report)) == TYINGS[tying]
    for found in end_reports(report):
        assert found.expected == pytest.approx(std)
        assert found.std == pytest.approx(std, rel=0.1)


def test_a_std_of_a_gain_times_the_usual_one_is_no_mistake_where_it_was_chosen():
    """(12 M)^(-1/4), DeepNorm's gain of a decoder, on d^(-1/2) is what a gain on the vocabulary would come to."""
    std = (12 * 2) ** -0.25 * 32**-0.5
    config = TransformerConfig(**{**OUR_SHAPE, "vocab_size": 2000}, tie_embeddings="none")
    chosen = Transformer(config, scheme_class("deepnorm")(), ends=EndsConfig(vocabulary_std=std))
    assert deepnet.audit(chosen, (IDS, None, TARGET), claims="deepnorm").findings == []
    chosen.ends = EndsConfig()  # the same numbers, but nobody says that they are meant
    (finding,) = deepnet.audit(chosen, (IDS, None, TARGET), claims="deepnorm").findings
    assert "vocabulary matrix is scaled by the decoder's gain" in finding.what


def test_a_claim_that_fixes_other_ends_is_compared_by_its_own():
    config = TransformerConfig(**OUR_SHAPE)
    model = Transformer(config, scheme_class("pre_ln")(), ends=EndsConfig(embedding_std=0.5))
    report = deepnet.audit(model, (IDS, None, TARGET), claims="scale_norm")
    assert [line.split(":")[0] for line in report.not_located] == ["encoder", "decoder"]
    assert all(r.expected == pytest.approx(32**-0.5) for r in end_reports(report))


@pytest.mark.parametrize(("ends", "std"), list(zip(ENDS, (0.25, 0.5, None), strict=True)), ids=str)
@pytest.mark.parametrize("name", ["Marian", "BERT", "GPT-2", "Llama"])
def test_an_adopted_model_says_what_was_chosen(name, ends, std):
    zoo = run_path(str(Path(__file__).parents[3] / "docs" / "adoption.py"), run_name="zoo")
    model = zoo["MODELS"][name]()
    deepnet.apply_scheme(model, "deepnorm", ends=ends)
    batch = zoo["inputs"](model)
    report = deepnet.audit(model, batch, claims="deepnorm")
    assert report.findings == []
    tables = [r for r in end_reports(report) if "token_type" not in r.where]
    assert {r.role for r in tables} == {"embedding", "vocabulary"}
    for found in tables:
        assert std is None or found.expected == pytest.approx(std)
        assert std is None or found.std == pytest.approx(std, rel=0.15)
