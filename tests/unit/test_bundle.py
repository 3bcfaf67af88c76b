import hashlib
import json
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from deepnet.bundle import (
    load_bundle,
    load_model_tensors,
    model_tensors,
    read_tensors,
    save_bundle,
    write_tensors,
)
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.errors import CheckpointError, DeepNetError
from deepnet.schemes.catalogue import list_schemes, load_scheme, scheme_class
from deepnet.seal import SUMS_FILE
from deepnet.transformer.models import Transformer, TransformerConfig

TEXT = [f"wort{number}" for number in range(27)]
SOURCE, TARGET = torch.tensor([[3, 4, 5, 0]]), torch.tensor([[29, 6, 7]])


@pytest.fixture(scope="module")
def tokenizers():
    config = TokenizerConfig(kind="words", vocab_size=30)
    one = train_tokenizer(TEXT, config=config)
    return Tokenizers(one, one)


def make_model(scheme="deepnorm", **shape):
    config = TransformerConfig(
        encoder_layers=2, decoder_layers=2, d_model=16, ffn_dim=32, num_heads=2, vocab_size=30,
        **shape,
    )  # fmt: skip
    torch.manual_seed(0)
    return Transformer(config, load_scheme(scheme)).eval()


@pytest.fixture
def saved(tmp_path, tokenizers):
    save_bundle(tmp_path / "bundle", make_model(), tokenizers, provenance={"updates": 7})
    return tmp_path / "bundle"


@pytest.mark.parametrize("scheme", ["deepnorm", "post_ln", "pre_ln", "branchnorm"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("tying", ["all", "none"])
def test_a_loaded_model_computes_what_the_saved_one_did(tmp_path, scheme, positions, tying):
    model = make_model(scheme, positions=positions, tie_embeddings=tying, max_positions=8)
    model.advance(123)
    save_bundle(tmp_path / "b", model)
    loaded = load_bundle(tmp_path / "b").model
    assert torch.equal(loaded(SOURCE, None, TARGET), model(SOURCE, None, TARGET))
    assert int(loaded.scheme_step) == 123
    assert not loaded.training


def test_everything_else_comes_back_too(saved, tokenizers):
    found = load_bundle(saved)
    assert found.tokenizers.target.fingerprint == tokenizers.target.fingerprint
    assert found.config.training == {"updates": 7}
    assert found.config.format_version == 1
    assert found.config.scheme["name"] == "deepnorm"
    assert found.path == saved
    assert {p.name for p in saved.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.model", "SHA256SUMS",
    }  # fmt: skip


def test_loading_draws_no_random_numbers(saved):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_bundle(saved)
    assert torch.equal(before, torch.get_rng_state())


def test_what_an_engine_holds_of_a_model_without_weights_is_filled_and_counts_as_made():
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, d_model=8, ffn_dim=8, num_heads=2, vocab_size=9
    )
    model, empty = (Transformer(config, load_scheme("deepnorm", {})) for _ in range(2))
    empty.to_empty(device="cpu")
    load_model_tensors(empty, model_tensors(model), held=dict(empty.named_parameters()))
    empty.check_made()
    for name, tensor in model_tensors(model).items():
        assert torch.equal(model_tensors(empty)[name], tensor), name


def test_float64_weights_stay_float64(tmp_path):
    model = make_model().double()
    save_bundle(tmp_path / "b", model)
    loaded = load_bundle(tmp_path / "b").model
    assert torch.equal(loaded(SOURCE, None, TARGET), model(SOURCE, None, TARGET))
    assert loaded(SOURCE, None, TARGET).dtype == torch.float64


def test_a_shared_matrix_is_stored_once(saved):
    names = read_tensors(saved / "model.safetensors").keys()
    assert sum("embedding" in name or "vocabulary" in name for name in names) == 1


def test_saving_again_replaces_the_bundle(saved, tokenizers, tmp_path):
    model = make_model(positions="learned")
    save_bundle(saved, model, tokenizers)
    assert load_bundle(saved).config.model.positions == "learned"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_the_weights_can_be_read_by_whoever_can_read_the_rest(saved):
    modes = {p.name: p.stat().st_mode for p in saved.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_a_failed_save_leaves_the_old_bundle(saved, tokenizers, tmp_path, monkeypatch):
    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DeepNetError, match="No space left on device"):
        save_bundle(saved, make_model(positions="learned"), tokenizers)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_kill_between_the_two_renames_loses_nothing(saved):
    saved.rename(saved.with_name(".bundle.previous"))
    assert load_bundle(saved).config.training == {"updates": 7}


def test_a_folder_that_is_no_bundle_is_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="not a bundle"):
        save_bundle(tmp_path / "thesis", make_model())
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


def edit_config(folder, **changes):
    (folder / SUMS_FILE).unlink(missing_ok=True)  # as whoever means it would
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2; this deepnet reads 1"),
        ({"format_version": None}, "format version None"),
        ({"modle": {}}, "unknown key 'modle'; did you mean 'model'"),
        ({"scheme": {"name": "deepnrom"}}, "did you mean 'deepnorm'"),
        ({"scheme": {"name": "deepnorm", "conventon": "paper"}}, "did you mean 'convention'"),
        ({"tokenizer": {"source": "a", "target": "b"}}, "not the one the model was trained with"),
    ],
)
def test_a_wrong_config_is_explained(saved, changes, message):
    edit_config(saved, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_bundle(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'"text"'])
def test_a_config_that_is_not_json_is_explained(saved, content):
    (saved / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_bundle(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=name if name != "tokenizer.model" else r"\.model"):
        load_bundle(saved)
    shutil.rmtree(saved)
    with pytest.raises(CheckpointError, match="not a bundle"):
        load_bundle(saved)


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, -1])
def test_truncated_weights_are_explained(saved, keep):
    (saved / SUMS_FILE).unlink()
    path = saved / "model.safetensors"
    content = path.read_bytes()
    end = int(len(content) * keep) if isinstance(keep, float) else keep
    path.write_bytes(content[:end])
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        load_bundle(saved)


def test_a_pickle_is_never_opened(saved):
    (saved / SUMS_FILE).unlink()
    torch.save({"weight": torch.ones(2)}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_bundle(saved)


def test_a_missing_unexpected_or_misshapen_tensor_is_named(saved):
    (saved / SUMS_FILE).unlink()
    name = next(n for n in model_tensors(make_model()) if n.endswith("fc1.weight"))
    tensors = read_tensors(saved / "model.safetensors")
    write_tensors(saved / "model.safetensors", {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(CheckpointError, match=f"'{name}' is missing"):
        load_bundle(saved)
    write_tensors(saved / "model.safetensors", tensors | {name + "s": torch.ones(1)})
    with pytest.raises(
        CheckpointError, match=f"unexpected tensor '{name}s'.*did you mean '{name}'"
    ):
        load_bundle(saved)
    write_tensors(saved / "model.safetensors", tensors | {name: torch.ones(3, 4)})
    with pytest.raises(CheckpointError, match=rf"'{name}' is \(3, 4\) .*expected \(32, 16\)"):
        load_bundle(saved)
    write_tensors(saved / "model.safetensors", tensors | {name: tensors[name].half()})
    with pytest.raises(CheckpointError, match=r"float16; expected .*float32"):
        load_bundle(saved)


def test_what_is_not_what_was_saved_is_refused_by_its_checksum(saved, tokenizers):
    assert (saved / SUMS_FILE).read_text().splitlines() == [
        f"{hashlib.sha256((saved / name).read_bytes()).hexdigest()}  {name}"
        for name in ("config.json", "model.safetensors", "tokenizer.model")
    ]
    weights = bytearray((saved / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # still a number, and nothing else could tell
    (saved / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its sha256"):
        load_bundle(saved)
    (saved / SUMS_FILE).unlink()
    assert load_bundle(saved).config.training == {"updates": 7}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(saved, name):
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(CheckpointError, match=f"{name}.* not a file"):
        load_bundle(saved)


@pytest.mark.parametrize("number", [10**9, 10**18])
@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("d_model", {}),
        ("ffn_dim", {}),
        ("encoder_layers", {}),
        ("decoder_layers", {}),
        ("source_vocab_size", {"tie_embeddings": "none"}),
        ("max_positions", {"positions": "learned"}),
    ],
)
def test_a_shape_that_the_weights_do_not_have_is_refused_before_anything_is_built(
    tmp_path, key, others, number
):
    save_bundle(tmp_path / "b", make_model(**others))
    shape = json.loads((tmp_path / "b" / "config.json").read_text())["model"]
    edit_config(tmp_path / "b", model={**shape, key: number})
    with memory_limited_to(4 << 30), pytest.raises(CheckpointError, match=r"config\.json"):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    "scheme",
    [
        {"name": "hyper_connections", "streams": 10**6},
        {"name": "hyper_connections", "streams": 10**12},
        {"name": "hyper_connections", "streams": 10**30},
        {"name": "mhc", "streams": 10**6},
        {"name": "mhc", "streams": 10**30},
        {"name": "denseformer", "dilation": 10**400},
        {"name": "completep", "d_base": 10**400},
        {"name": "laurel", "rank": 10**9},
        {"name": "laurel", "rank": 10**30},
    ],
)
def test_an_option_of_a_scheme_that_asks_for_the_impossible_is_refused(saved, scheme):
    edit_config(saved, scheme=scheme)
    with memory_limited_to(4 << 30), pytest.raises(CheckpointError):
        load_bundle(saved)


@pytest.mark.parametrize("scheme", list_schemes())
@pytest.mark.parametrize("tying", ["all", "none"])
def test_a_real_bundle_of_any_scheme_is_within_the_limits(tmp_path, scheme, tying):
    architecture = scheme_class(scheme).architectures[0]
    layers = {"decoder_only": (0, 2), "encoder_only": (2, 0)}.get(architecture, (2, 2))
    config = TransformerConfig(
        architecture=architecture, encoder_layers=layers[0], decoder_layers=layers[1], d_model=8, ffn_dim=4,
        num_heads=2, vocab_size=9, tie_embeddings=tying, positions="learned", max_positions=5,
    )  # fmt: skip
    save_bundle(tmp_path / "b", Transformer(config, load_scheme(scheme)))
    assert load_bundle(tmp_path / "b").config.scheme["name"] == scheme


@contextmanager
def memory_limited_to(num_bytes):
    """Let the operating system refuse this process more memory than it has and so much besides."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_tokenizer_of_another_size_is_refused(tmp_path, tokenizers):
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, d_model=8, ffn_dim=8, num_heads=1, vocab_size=31
    )
    model = Transformer(config, load_scheme("post_ln"))
    with pytest.raises(CheckpointError, match="30 ids, the model 31"):
        save_bundle(tmp_path / "b", model, tokenizers)
    assert not (tmp_path / "b").exists()
