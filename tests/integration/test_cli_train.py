"""`deepnet prepare` and `deepnet train`: whole runs, resumed ones, and dry runs."""

import json
import re
import shutil
import signal

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deepnet.bundle import load_bundle
from deepnet.errors import ConfigError
from deepnet.left_open import as_before
from deepnet.lock import locked_folder
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.resuming import fixed_sections
from deepnet.pipeline.run import run_recipe
from deepnet.record import read_jsonl
from deepnet.training.checkpoint.resume import check_resumable
from deepnet.training.sinks.progress import ProgressDisplay


def distinct(corpus):
    return len(set((corpus / "text.de").read_text().splitlines()))


def losses(run):
    return {row["step"]: row["loss"] for row in read_jsonl(run / "metrics.jsonl")}


def lose(run, section, *keys):
    """Take keys out of a run's record and checkpoints, as a version without them would have written them."""
    for path in (run / "recipe.json", *run.glob("checkpoints/*/state.json")):
        data = json.loads(path.read_text())
        settings = data.get("recipe") or data["settings"]
        settings[section] = {k: v for k, v in settings[section].items() if k not in keys}
        path.write_text(json.dumps(data))
    for sums in run.glob("checkpoints/*/SHA256SUMS"):
        sums.unlink()


def test_a_run_of_new_text_says_what_was_left_out(cli, corpus, tmp_path):
    shown = cli("train", corpus / "recipe.toml", "--dry-run", "--cache", tmp_path).out
    kept = distinct(corpus)
    assert f"{kept} of 260 pairs kept (duplicate: {260 - kept})" in shown


def test_a_run_says_what_it_did_where_it_is_and_what_to_type_next(finished):
    shown = (finished.parent / "finished.out").read_text()
    assert "case:mixed|eff:no|tok:13a" in shown
    assert f"deepnet translate {finished}" in shown
    assert set(losses(finished)) == {10, 20, 30}
    expected = {"recipe.json", "environment.json", "metrics.jsonl", "checkpoints", "bundle"}
    expected |= {"probes.jsonl", "probe_start.safetensors", "data"}
    assert {path.name for path in finished.iterdir()} == expected | {"outputs", ".lock"}
    lines = {len((finished / "outputs" / f"test.{name}.txt").read_text().splitlines())
             for name in ("source", "reference", "translation")}  # fmt: skip
    assert lines == {12}


def test_json_alone_on_standard_output(train, tmp_path):
    result = train(tmp_path / "run", "training.max_steps=2", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["stopped"] == "max_steps"
    assert found["step"] == 2
    assert found["scores"]["sentences"] == 12
    assert "step      2" in result.err


def test_a_folder_that_holds_a_run_is_refused_and_stays(train, finished):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    result = train(finished)
    assert result.code == 2
    assert "holds another run" in result.err
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


def test_an_interrupted_run_goes_on_by_the_command_it_shows(
    cli, train, cache, tmp_path, finished, monkeypatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ProgressDisplay, "__call__", lambda *_: signal.raise_signal(signal.SIGTERM))
        result = train(run)
    assert result.code == 0
    assert not (run / "bundle").exists()
    [command] = [line for line in result.out.splitlines() if "--resume" in line]
    assert cli(*command.split()[-5:], "--cache", cache).code == 0
    assert losses(run) == losses(finished)
    assert (run / "bundle").exists()


def test_what_a_resumed_run_may_not_change_is_said(cli, cache, finished):
    result = cli(
        "train", finished, "model.d_model=32", "--out", finished, "--resume", "--cache", cache
    )
    assert result.code == 2
    assert "'model.d_model' was 16 and is now 32" in result.err


@pytest.mark.parametrize(
    "later",
    ["num_kv_heads=1", "loops=2", "positions=rotary", "decoder_start=eos"],
)
def test_checkpoints_of_before_a_key_of_the_model_was_there_go_on_with_what_was_done(corpus, later):
    keys = ("num_kv_heads", "loops", "coefficient_depth", "decoder_start")
    silent = fixed_sections(load_recipe(corpus / "recipe.toml"))
    other = fixed_sections(load_recipe(corpus / "recipe.toml", [f"model.{later}"]))
    model = {key: value for key, value in silent["model"].items() if key not in keys}
    before = {**silent, "model": model}
    check_resumable(before, as_before(Recipe, silent, before))
    with pytest.raises(ConfigError, match=r"'model\.\w+' was"):
        check_resumable(before, as_before(Recipe, other, before))


def test_a_run_of_before_there_was_a_choice_goes_on_from_padding(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "model.positions=rotary", "model.decoder_start=padding").code == 0
    lose(run, "model", "decoder_start", "num_kv_heads", "loops", "coefficient_depth")
    lose(run, "training", "ema_decay", "step_in_backward")
    longer = train(run, "model.positions=rotary", "training.max_steps=12", "--resume")
    assert longer.code == 0
    assert not load_bundle(run / "bundle").model.config.starts_from_eos


def test_a_longer_run_with_a_linear_schedule_says_how(cli, train, cache, tmp_path):
    run = tmp_path / "run"
    assert train(run, "schedule.name=linear", "training.max_steps=12").code == 0
    again = ["train", run, "training.max_steps=14", "--out", run, "--resume", "--cache", cache]
    refused = cli(*again)
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    [told] = re.findall(r"set (\S+) besides training\.max_steps", refused.err)
    assert told == "schedule.decay_steps=12"
    assert cli(*again, told).code == 0
    assert read_jsonl(run / "metrics.jsonl")[-1]["lr"] == 0.0


def test_fewer_checkpoints_than_average_last_are_said(train, tmp_path):
    result = train(tmp_path / "run", "training.average_last=3", "training.max_steps=2")
    assert result.code == 0
    assert "of training.average_last = 3 checkpoints there are 1:" in result.out
    assert load_bundle(tmp_path / "run" / "bundle").config.training["steps"] == [2]


def test_the_scheme_sees_what_one_process_would_see(train, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "deepnet.schemes.deepnorm.Scheme.prepare",
        lambda self, model, batches: seen.append(next(iter(batches))),
    )
    assert train(tmp_path / "run", "training.max_steps=1").code == 0
    [(source, keep, target_in)] = seen
    assert source.shape == keep.shape
    assert len(source) == len(target_in)
    assert (target_in[:, 0] == 35).all()  # padding starts the decoder


def test_a_run_that_another_process_writes_is_refused(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=1").code == 0
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with locked_folder(run):
        result = train(run, "training.max_steps=2", "--resume")
    assert result.code == 2
    assert "is being written by process" in result.err
    assert len(result.err.splitlines()) == 1
    del before[run / ".lock"]
    assert {p: p.read_bytes() for p in before} == before


def test_one_gpu_for_several_processes_is_refused(train, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = train(tmp_path / "run", "--device", "cuda:3")
    assert result.code == 2
    assert "the device 'cuda:3' is one GPU, but torchrun started 2 processes" in result.err
    assert len(result.err.splitlines()) == 1


def test_tensorboard_gets_what_metrics_has(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=10", "--tensorboard").code == 0
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    [row] = read_jsonl(run / "metrics.jsonl")
    for name in ("loss", "lr", "validation_loss"):
        [event] = shown.Scalars(name)
        assert (event.step, event.value) == (10, pytest.approx(row[name], rel=1e-6))


def test_the_same_again_from_a_run_folder(cli, cache, finished, tmp_path):
    result = cli("train", finished, "--out", tmp_path / "again", "--cache", cache)
    assert result.code == 0
    assert losses(tmp_path / "again") == losses(finished)


def test_fine_tuning_starts_from_the_weights(train, finished, tmp_path):
    tuned = tmp_path / "tuned"
    options = ["training.max_steps=10", "tokenizer.vocab_size=33"]
    assert train(tuned, *options, "--from", finished).code == 0
    assert losses(tuned)[10] < losses(finished)[20]
    vocabularies = [run / "bundle" / "tokenizer.model" for run in (finished, tuned)]
    assert vocabularies[0].read_bytes() == vocabularies[1].read_bytes()


def test_fine_tuning_that_was_stopped_before_its_first_checkpoint_starts_from_the_weights_again(
    train, finished, tmp_path
):
    out = tmp_path / "tuned"
    options = ["training.max_steps=10", "training.save_every=1000", "training.validate_every=0"]
    assert train(out, *options, "--from", finished).code == 0
    expected = losses(out)
    for left in ("checkpoints", "bundle", "outputs"):
        shutil.rmtree(out / left)
    assert train(out, *options, "--resume").code == 0
    assert losses(out) == expected


def test_a_resumed_run_says_what_it_goes_on_with_before_it_does(
    corpus, cache, finished, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    longer = load_recipe(run, ["training.max_steps=1000", "schedule.name=constant"])
    longer = longer.model_copy(update={"schedule": load_recipe(run).schedule})

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_recipe(longer, out=run, resume=True, cache=cache, sinks=[stop])
    assert load_recipe(run).training.max_steps == 1000


def test_fine_tuning_refuses_weights_of_another_function(train, finished, tmp_path):
    other = ["scheme.name=post_ln", "model.num_heads=4"]
    result = train(tmp_path / "tuned", *other, "--from", finished)
    assert result.code == 2
    assert "'model.num_heads' was 2 and is now 4" in result.err
    assert "'scheme.name' was 'deepnorm' and is now 'post_ln'" in result.err
    assert not (tmp_path / "tuned").exists()


def test_fine_tuning_goes_on_with_branchnorms_growth(train, tmp_path):
    options = ["scheme.name=branchnorm", "training.max_steps=4"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(first, *options).code == 0
    assert train(second, *options, "--from", first).code == 0
    steps = [load_bundle(run / "bundle").model.scheme_step.item() for run in (first, second)]
    assert steps == [4, 8]


def test_fine_tuning_starts_translations_as_the_bundle_does(train, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    options = ["model.positions=rotary", "training.max_steps=4"]
    assert train(first, *options, "model.decoder_start=padding").code == 0
    assert train(second, *options, "--from", first).code == 0
    assert load_bundle(second / "bundle").model.config.decoder_start == "padding"


def test_resuming_notices_that_the_text_has_changed(cli, corpus, cache, tmp_path):
    for name in ("text.de", "text.en", "recipe.toml"):
        shutil.copy(corpus / name, tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(corpus), str(tmp_path)))
    out = tmp_path / "run"
    assert cli("train", recipe, "--out", out, "--cache", cache, "training.max_steps=1").code == 0
    for name, line in (("text.de", "der hund\n"), ("text.en", "the dog\n")):
        with (tmp_path / name).open("a") as file:
            file.write(line * 3)
    result = cli(
        "train", recipe, "--out", out, "--cache", cache, "--resume", "training.max_steps=2"
    )
    assert result.code == 2
    assert f"{tmp_path}/text.de and {tmp_path}/text.en have changed" in result.err


def test_resuming_before_the_first_checkpoint_is_said_and_checked(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=1").code == 0
    shutil.rmtree(run / "checkpoints")
    again = ["--resume", "training.max_steps=1"]
    refused = train(run, *again, "model.d_model=32")
    assert refused.code == 2
    assert "'model.d_model' was 16 and is now 32" in refused.err
    result = train(run, *again)
    assert result.code == 0
    assert "starts from the beginning" in result.out


def test_a_dry_run_shows_all_and_writes_nothing(train, corpus, tmp_path):
    result = train(tmp_path / "run", "--dry-run", "--json")
    assert result.code == 0
    assert not (tmp_path / "run").exists()
    found = json.loads(result.out)
    counts = found["parameters"]
    assert counts["total"] == counts["encoder"] + counts["decoder"] + counts["embeddings"]
    assert counts["embeddings"] == 36 * 16
    assert found["coefficients"]["decoder"]["alpha"] == pytest.approx((3 * 2) ** 0.25, rel=1e-12)
    for row in found["initialization"]:
        error = row["expected_std"] / (2 * row["count"]) ** 0.5
        assert abs(row["measured_std"] - row["expected_std"]) < 4 * error, row
    update, step = found["update"], found["step"]
    assert update["sentences"] * update["per_epoch"] == pytest.approx(distinct(corpus) - 24, abs=2)
    assert step["sentences"] * max(step["source_length"], step["target_length"]) <= 256
    assert step["seconds"] > 0
    assert step["peak_bytes"] > 0


def test_a_dry_run_for_people(cli, corpus, cache):
    result = cli("train", corpus / "recipe.toml", "--dry-run", "--cache", cache)
    assert result.code == 0
    for word in ("parameters", "alpha", "expected", "updates per epoch", "peak memory"):
        assert word in result.out


def test_a_dry_run_says_what_ends_the_run(cli, corpus, cache):
    def look(*options):
        command = ["train", corpus / "recipe.toml", *options, "--dry-run", "--cache", cache]
        return cli(*command), json.loads(cli(*command, "--json").out)

    shown, found = look(
        "schedule.name=linear",
        "training.max_steps=0",
        "training.max_epochs=3",
        "training.max_minutes=5",
    )
    updates = 3 * found["update"]["per_epoch"]
    assert found["end"] == {
        "limits": {"training.max_epochs": 3, "training.max_minutes": 5},
        "updates": updates,
        "anneals": True,
    }
    assert (
        "the run ends at training.max_epochs = 3 or training.max_minutes = 5.0, whichever comes first; "
        f"at most {updates} updates; the learning rate falls towards that end" in shown.out
    )
    found = look("training.max_steps=0", "training.max_minutes=5")[1]
    assert (found["end"]["updates"], found["end"]["anneals"]) == (None, False)


def test_a_dry_run_refuses_epochs_that_the_warmup_outlasts(cli, corpus, cache):
    options = ["schedule.name=linear", "schedule.warmup_steps=4000", "training.max_epochs=1"]
    result = cli("train", corpus / "recipe.toml", *options, "--dry-run", "--cache", cache)
    assert result.code == 2
    assert "falls towards training.max_epochs = 1, but these are" in result.err


def test_prepare_counts_what_it_leaves_out(cli, corpus, cache):
    result = cli("prepare", corpus / "recipe.toml", "--json", "--cache", cache)
    assert result.code == 0
    found = json.loads(result.out)
    kept = distinct(corpus)
    counts = {"read": 260, "kept": kept, "dropped": {"duplicate": 260 - kept}}
    assert found["counts"]["train"] == counts
    assert found["parts"]["test"]["pairs"] == 12


def test_the_licence_of_a_corpus_is_shown_where_it_is_used(cli, tmp_path, corpus):
    result = cli(
        "prepare", corpus / "recipe.toml", "--cache", tmp_path,
        "data={corpus = 'tatoeba-en-de', source_language = 'de', target_language = 'english'}",
    )  # fmt: skip
    assert result.code == 2
    assert "CC BY 2.0 FR" in result.out
    assert result.err == "error: tatoeba-en-de has no language 'english'; it has de, en\n"


def test_a_looped_model_trains_resumes_and_says_the_depth_of_its_coefficients(
    cli, train, corpus, cache, tmp_path
):
    run = tmp_path / "run"
    settings = ("model.loops=3", "scheme.name=deepnorm")
    dry = cli("train", corpus / "recipe.toml", *settings, "--dry-run", "--cache", cache)
    recipe = load_recipe(corpus / "recipe.toml", list(settings))
    assert f"{(3 * 3 * recipe.model.decoder_layers) ** 0.25:.4g}" in dry.out
    assert train(run, *settings).code == 0
    assert load_bundle(run / "bundle").model.config.loops == 3
    assert train(run, *settings, "training.max_steps=12", "--resume").code == 0
    changed = train(run, "scheme.name=deepnorm", "training.max_steps=14", "--resume")
    assert changed.code == 2
    assert "model.loops" in changed.err
