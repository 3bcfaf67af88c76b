"""Sections refuse what contradicts itself or has no effect, and name the key."""

import pytest

from deepnet.config import build
from deepnet.errors import ConfigError
from deepnet.training.checkpoint.resume import CHANGEABLE, check_resumable
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TrainingConfig, {}, "max_steps, max_epochs or max_minutes"),
        (TrainingConfig, {"max_steps": -1}, "'max_steps' is -1"),
        (TrainingConfig, {"max_steps": 1, "average_last": 5}, "keep_last of at least as many"),
        (TrainingConfig, {"max_steps": 1, "patience": 5}, "validate_every"),
        (TrainingConfig, {"max_step": 1}, "did you mean 'max_steps'"),
        (TrainingConfig, {"max_steps": 1, "label_smoothing": 1.0}, "'label_smoothing' is 1.0"),
        (TrainingConfig, {"max_steps": 1, "precision": "fp8"}, "'precision' is 'fp8'"),
        (OptimizerConfig, {"lr": 0}, "'lr' is 0"),
        (OptimizerConfig, {"name": "adam", "momentum": 0.9}, "momentum has no effect"),
        (OptimizerConfig, {"name": "sgd", "betas": (0.9, 0.999)}, "betas has no effect"),
        (OptimizerConfig, {"name": "sgd", "eps": 1e-8}, "eps has no effect"),
        (
            ScheduleConfig,
            {"name": "linear", "decay_steps": 10, "warmup_steps": 10},
            "decay_steps = 10",
        ),
        (ScheduleConfig, {"name": "constant", "decay_steps": 10}, "decay_steps has no effect"),
    ],
)
def test_refuses(kind, values, message):
    with pytest.raises(ConfigError) as error:
        build(kind, values)
    assert message in str(error.value)


def test_a_resolved_section_can_be_read_again():
    for section in (
        OptimizerConfig(name="sgd", momentum=0.9),
        ScheduleConfig(name="cosine", decay_steps=9000),
        TrainingConfig(max_epochs=3),
    ):
        assert build(type(section), section.model_dump(mode="json")) == section


def test_every_field_is_documented():
    for section in (OptimizerConfig, ScheduleConfig, TrainingConfig):
        for name, field in section.model_fields.items():
            assert field.description, name


def test_the_keys_that_may_change_exist():
    assert {f"training.{name}" for name in TrainingConfig.model_fields} >= CHANGEABLE


def test_a_changed_key_is_named_with_both_values_and_the_rest_passes():
    old = {"optimizer": {"betas": (0.9, 0.98), "lr": 1.0}, "training": {"max_steps": 5}}
    check_resumable(
        old, {"optimizer": {"betas": [0.9, 0.98], "lr": 1.0}, "training": {"max_steps": 9}}
    )
    with pytest.raises(ConfigError, match=r"'optimizer\.lr' was 1\.0 and is now 2\.0"):
        check_resumable(old, {**old, "optimizer": {"betas": (0.9, 0.98), "lr": 2.0}})


def settings(**training):
    sections = {
        "training": TrainingConfig(max_steps=5, **training),
        "optimizer": OptimizerConfig(name="muon"),
    }
    return {name: section.model_dump(mode="json") for name, section in sections.items()}


@pytest.mark.parametrize("key", ["label_smoothing", "clip_norm", "ema_decay", "keep_best"])
def test_a_key_that_came_after_a_checkpoint_is_refused_only_where_it_changes_something(key):
    old = settings()
    del old["training"][key], old["optimizer"]["muon"]["ns_steps"]
    check_resumable(old, settings())
    other = "bleu" if key == "keep_best" else 0.5
    with pytest.raises(ConfigError, match=rf"'training\.{key}' was 'not set' and is now '?{other}"):
        check_resumable(old, settings(**{key: other}))


def test_settings_of_a_checkpoint_that_are_no_sections_are_refused():
    with pytest.raises(ConfigError, match=r"'training' was 3"):
        check_resumable({**settings(), "training": 3}, settings())
