"""Inside the Hugging Face Trainer and Lightning, unchanged, as in a plain loop: schedules advance, groups are used."""

import warnings
from pathlib import Path
from runpy import run_path

import pytest
import torch
import transformers
from torch import Tensor, nn

from deepnet import apply_scheme, from_pretrained, parameter_groups
from deepnet.anatomy.locate import locate
from deepnet.transformer.scales import ScheduledScale

ZOO = run_path(str(Path(__file__).parents[2] / "docs" / "adoption.py"), run_name="zoo")
T = 40


def adopted_bert() -> nn.Module:
    model = ZOO["bert"]().float().train()
    apply_scheme(model, "branchnorm", options={"T": T})
    return model


def factor(model: nn.Module) -> float:
    (only,) = {float(m.factor) for m in model.modules() if isinstance(m, ScheduledScale)}
    return only


def rows(count: int) -> list[dict[str, Tensor]]:
    ids = torch.randint(3, 39, (count, 6))
    return [{"input_ids": one, "labels": one} for one in ids]


def stacked(batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in batch]) for name in batch[0]}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_plain_loop(accumulation):
    model = adopted_bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for place, row in enumerate(rows(12)):
        model(**stacked([row])).loss.backward()
        if (place + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert factor(model) == pytest.approx(12 / accumulation / T, rel=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_hugging_face_trainer(tmp_path, accumulation):
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulation,
        max_steps=6,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )

    def trainer(model: nn.Module) -> transformers.Trainer:
        return transformers.Trainer(model, settings, train_dataset=rows(24), data_collator=stacked)

    model = adopted_bert()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations
        trainer(model).train()
        resumed = adopted_bert()
        trainer(resumed).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert factor(model) == factor(resumed) == pytest.approx(6 / T, rel=1e-6)
    saved = from_pretrained(tmp_path / "checkpoint-4")
    assert factor(saved) == pytest.approx(4 / T, rel=1e-6)


# Adam's first update moves every number by its rate ------------------------------------------------------------------

RATE, MULTIPLIER = 1e-3, 30.0


def grouped_bert() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = ZOO["bert"]().float().train()
    apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": MULTIPLIER})
    return model, torch.optim.AdamW(parameter_groups(model, lr=RATE), eps=1e-16)


def check_first_update(model: nn.Module, before: dict[str, Tensor]) -> None:
    embedding = "bert.embeddings.word_embeddings.weight"
    last = f"{locate(model).path(list(locate(model).sites())[-1].part.weights[-1].owner)}.weight"
    for name, rate in ((embedding, RATE * MULTIPLIER), (last, RATE)):
        moved = (model.get_parameter(name) - before[name]).detach().abs()
        # what the loss does not depend on to within its rounding stays; nothing moves further
        assert float(moved.median()) == pytest.approx(rate, rel=1e-3)
        assert float(moved.max()) == pytest.approx(rate, rel=1e-3)


def test_embeddings_move_by_the_multiplier_in_a_plain_loop():
    model, optimizer = grouped_bert()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(**stacked(rows(4))).loss.backward()
    optimizer.step()
    check_first_update(model, before)


def test_embeddings_move_by_the_multiplier_in_hugging_face_s_trainer(tmp_path):
    model, optimizer = grouped_bert()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        max_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations
        transformers.Trainer(
            model,
            settings,
            train_dataset=rows(4),
            data_collator=stacked,
            optimizers=(optimizer, None),
        ).train()
    check_first_update(model, before)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning(tmp_path, accumulation):
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = adopted_bert()

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    task = Task()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about workers
        trainer = lightning.Trainer(
            max_epochs=1,
            accumulate_grad_batches=accumulation,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(rows(12), batch_size=2, collate_fn=stacked)
        trainer.fit(task, loader)
    assert factor(task.model) == pytest.approx(6 / accumulation / T, rel=1e-6)
