"""Wrong use and bad input: one clear line on standard error, exit code 2 or 1, nothing written."""

import resource
import shutil
from contextlib import contextmanager

import pytest
import torch

SIDES = {"source": "de", "target": "en"}
WRONG_USE = {
    "trainings.seed=2": "unknown key 'trainings'; did you mean 'training'?",
    "training.sed=2": "unknown key 'training.sed'; did you mean 'seed'?",
    "model.d_model=wide": "'model.d_model' is 'wide': input should be a valid integer",
    "model.d_model=-3": "'model.d_model' is -3: input should be greater than or equal to 1",
    "model.num_heads=3": "d_model 16 is not a multiple of num_heads 3",
    "optimizer.name=adm": "'optimizer.name' is 'adm': input should be 'adam'",
    "scheme.name=depnorm": "unknown scheme 'depnorm'; did you mean 'deepnorm'?",
    "scheme.beta=1": "unknown key 'scheme.beta'",
    "seed": "'seed' is not an override; write section.key=value",
    "training.max_steps=0": "no limit is set",
    "data.source_language=en": "'source_language' and 'target_language' are both 'en'",
    "batching.max_tokens=8": "max_sentence_tokens is 256, more than one micro-batch holds",
}


def assert_one_line(result, code, words):
    assert result.code == code, result.err
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    assert words in result.err


@pytest.mark.parametrize("assignment", WRONG_USE)
def test_a_wrong_recipe_is_one_line_and_code_2(train, tmp_path, assignment):
    assert_one_line(train(tmp_path / "run", assignment), 2, WRONG_USE[assignment])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "has 0 lines and"),
        (b"der hund .\n" * 3, "has 3 lines and"),
        (b"der hund .\n" * 259 + b"der b\xe4r .\n", "line 260: byte 6 of the line (0xe4)"),
        (b"\n" * 260, "cleaning leaves none of the 260 pairs"),
        (b"x" * 1_000_000 + b"\n" + b"\n" * 259, "empty: 259, too long: 1"),
    ],
)
def test_bad_text_is_one_line_and_code_1(train, tmp_path, content, words):
    file = tmp_path / "bad.de"
    if content is not None:
        file.write_bytes(content)
    cache = tmp_path / "cache"
    result = train(tmp_path / "run", f"data.train_source={file}", "--cache", cache)
    assert_one_line(result, 1, words)
    assert not (tmp_path / "run").exists()
    assert not list(cache.glob("*/preparation.json"))


def test_a_vocabulary_larger_than_the_text_supports(cli, corpus, tmp_path):
    result = cli("prepare", corpus / "recipe.toml", "tokenizer.vocab_size=500", "--cache", tmp_path)
    assert result.code == 1
    assert "a vocabulary of 500 is larger than the text supports: at most" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "{recipe}"], 2, "--out is missing"),
        (["train", "nowhere.toml", "--out", "{new}"], 2, "cannot read the recipe nowhere.toml"),
        (["train", "own_file", "--out", "{new}"], 2, "did you mean 'own_files'? 'deepnet recipes'"),
        (["prepare", "recipes/demo.toml"], 2, "did you mean 'demo'? 'deepnet recipes'"),
        (["recipes", "multi30k_de"], 2, "did you mean 'multi30k_de_en'? 'deepnet recipes'"),
        (["recipes", "qqq", "--json"], 2, "no shipped recipe 'qqq'; 'deepnet recipes' lists"),
        (["train", "{recipe}", "--out", "{new}", "--device", "gpu"], 2, "the device 'gpu'"),
        (["train", "{recipe}", "--out", "{new}", "--resume"], 2, "holds no run"),
        (["train", "{recipe}", "--dry-run", "--resume"], 2, "leave out --resume"),
        (["plan", "nowhere.toml"], 2, "cannot read the recipe nowhere.toml"),
        (["plan", "{recipe}", "--device", "gpu"], 2, "the device 'gpu'"),
        (
            ["train", "{recipe}", "--out", "{new}", "--resume", "--from", "{run}"],
            2,
            "a resumed run has its own weights",
        ),
        (["train", "{recipe}", "--out", "{new}", "--from", "{new}"], 1, "does not exist"),
        (["translate", "{new}"], 1, "does not exist"),
        (["translate", "{corpus}"], 1, "is neither a run folder nor a bundle"),
        (["translate", "{run}", "decoding.bem_size=3"], 2, "did you mean 'beam_size'?"),
        (["translate", "{run}", "training.seed=3"], 2, "only decoding.key=value can"),
        (["translate", "decoding.beam_size=3"], 2, "no model is given"),
        (["translate", "{run}", "--n-best", "9"], 2, "n_best is 9, more than beam_size 2"),
        (["evaluate", "{run}", "--source", "{corpus}/text.de"], 2, "belong together"),
        (["evaluate", "{run}", "--part", "tset"], 2, "there is no part 'tset'"),
        (["evaluate", "{run}/bundle"], 2, "has no test part of its own"),
        (["average", "{run}", "--last", "9"], 2, "keeps 3 checkpoints, fewer than the 9"),
        (["average", "{run}", "--last", "0"], 2, "expected at least 1"),
        (["coefficients", "--scheme", "depnorm"], 2, "did you mean 'deepnorm'?"),
        (["coefficients", "--scheme", "deepnorm"], 2, "expected at least one layer"),
        (["data", "get", "multi3k"], 2, "did you mean 'multi30k'?"),
        (["data", "get", "tatoeba-en-de", "de", "fr"], 2, "has no language 'fr'"),
        (["data", "get", "opus-100"], 2, "name two"),
    ],
)
def test_wrong_arguments(cli, corpus, cache, finished, tmp_path, arguments, code, words):
    places = {"recipe": corpus / "recipe.toml", "corpus": corpus, "run": finished}
    filled = [text.format(**places, new=tmp_path / "new") for text in arguments]
    if arguments[0] in ("train", "evaluate", "average"):
        filled += ["--cache", str(cache)]
    assert_one_line(cli(*filled), code, words)
    assert not (tmp_path / "new").exists()


def test_unknown_verbs_and_flags_are_wrong_use(cli):
    result = cli("trains")
    assert result.code == 2
    assert "Did you mean 'train'" in result.err
    assert cli("train", "--ouput", "x").code == 2


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_a_damaged_bundle(cli, finished, tmp_path, damage):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for file in (finished / "bundle").iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    weights = bundle / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(
        content[: len(content) // 2] if damage == "truncated" else b"PK\x03\x04" * 9
    )
    result = cli("translate", bundle, stdin=b"der hund .\n")
    words = "model.safetensors is damaged: its sha256 is not the one in SHA256SUMS; copy"
    assert_one_line(result, 1, words)


def test_a_damaged_checkpoint_is_named_on_resume(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=10").code == 0
    state = run / "checkpoints" / "step_00000010" / "state.json"
    state.write_bytes(state.read_bytes()[:100])
    result = train(run, "--resume")
    assert_one_line(result, 1, "step_00000010 is not a complete checkpoint")


def test_ctrl_c_outside_training_is_130_without_a_traceback(cli, corpus, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("deepnet.pipeline.recipe.load_recipe", interrupt)
    result = cli("prepare", corpus / "recipe.toml")
    assert result.code == 130
    assert "Traceback" not in result.err


def test_a_refusal_of_the_operating_system_is_one_line(cli, corpus, tmp_path):
    (tmp_path / "file").touch()
    result = cli("prepare", corpus / "recipe.toml", "--cache", tmp_path / "file")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1


def checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_blank_lines_and_a_line_of_a_million_characters_only_cost_themselves(
    train, corpus, tmp_path
):
    good = [(corpus / f"text.{name}").read_bytes().splitlines() for name in ("de", "en")]
    bad = [(b"", b"the dog"), (b"der hund", b" "), (b"", b""), (b"x" * 1_000_000, b"x")]
    for name, lines, extra in zip(("de", "en"), good, zip(*bad, strict=True), strict=True):
        (tmp_path / f"text.{name}").write_bytes(
            b"\n".join([*lines[:130], *extra, *lines[130:], b""])
        )
    files = (f"data.train_{side}={tmp_path}/text.{name}" for side, name in SIDES.items())
    options = ["training.max_steps=1", "--cache", tmp_path / "cache"]
    result = train(tmp_path / "run", *options, *files)
    assert result.code == 0, result.err
    kept = len(set(good[0]))
    assert f"{kept} of 264 pairs kept" in result.out
    assert "empty: 3" in result.out
    assert "too long: 1" in result.out


def test_held_out_sentences_longer_than_learned_positions_are_refused_before_training(
    train, tmp_path
):
    options = ["model.positions=learned", "model.max_positions=24", "data.max_sentence_tokens=24"]
    result = train(tmp_path / "run", *options)
    assert_one_line(result, 2, "longer than data.max_sentence_tokens = 24, and learned positions")
    assert not (tmp_path / "run").exists()
    result = train(tmp_path / "run", *options[:2])
    assert_one_line(result, 2, "learned positions for 24 only (model.max_positions)")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_saved(train, tmp_path):
    # the first update is taken at 1e-7, the second at 1e35: the third has no finite loss
    rates = ["optimizer.lr=1e38", "schedule.warmup_steps=1000", "training.save_every=1"]
    result = train(tmp_path / "run", *rates)
    assert_one_line(result, 1, " at step 3 (")
    assert "the latest checkpoint is as it was" in result.err
    assert checkpoints(tmp_path / "run") == ["step_00000001", "step_00000002"]
    assert not (tmp_path / "run" / "bundle").exists()


@contextmanager
def files_limited_to(num_bytes):
    """Let the operating system refuse to let any file grow beyond a size, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_while_saving_loses_nothing(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=10").code == 0
    with files_limited_to(20_000):
        result = train(run, "--resume")
    assert_one_line(result, 1, "cannot save the checkpoint of step 20")
    assert checkpoints(run) == ["step_00000010"]
    assert train(run, "--resume").code == 0
    assert checkpoints(run)[-1] == "step_00000030"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("content", [None, b"PK\x03\x04" * 9])
@pytest.mark.parametrize(
    ("sealed", "words"),
    [(True, "damaged: its sha256"), (False, "truncated or not a safetensors file")],
)
def test_a_truncated_or_foreign_checkpoint_is_refused_on_resume(
    cli, corpus, cache, tmp_path, finished, file, content, sealed, words
):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    damaged = run / "checkpoints" / "step_00000030" / file
    if not sealed:
        damaged.with_name("SHA256SUMS").unlink()
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2] if content is None else content)
    before = checkpoints(run)
    options = ["--resume", "--cache", cache, "training.max_steps=40"]
    result = cli("train", run, "--out", run, *options)
    assert_one_line(result, 1, words)
    assert "step_00000030" in result.err
    assert checkpoints(run) == before


def test_a_checkpoint_of_another_model_is_refused_on_resume(cli, train, cache, tmp_path, finished):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(finished, run)
    options = ["training.max_steps=10", "model.decoder_layers=1"]
    assert train(other, *options).code == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    result = cli("train", run, "--out", run, "--resume", "--cache", cache)
    assert_one_line(result, 2, "'model.decoder_layers' was 1 and is now 2")


def test_too_little_memory_is_one_line(train, tmp_path, monkeypatch):
    def forward(self, *inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("deepnet.transformer.models.Transformer.forward", forward)
    result = train(tmp_path / "run", "probes.every=0")
    assert_one_line(result, 1, "out of memory at step 1 on source [")
    assert "batching.max_tokens" in result.err
    result = train(tmp_path / "measured")
    assert_one_line(result, 1, "out of memory while the probes measured the model")
    assert "probes.sentences" in result.err
