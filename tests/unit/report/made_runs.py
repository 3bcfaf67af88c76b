"""Run folders written by hand in the documented formats: what a report should show of them is known exactly."""

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SITES = {"encoder": ("self", "ffn"), "decoder": ("self", "cross", "ffn")}
ROLES = {"self": "q k v out", "cross": "q k v out", "ffn": "fc1 fc2"}


def make_run(
    folder: Path,
    *,
    layers: int = 3,
    steps: int = 40,
    log_every: int = 10,
    probe_every: int = 10,
    scheme: str = "deepnorm",
    seed: int = 1,
    incidents: Iterable[Mapping[str, Any]] = (),
    finished: bool = True,
    probes: bool = True,
    sentences: Mapping[str, list[str]] | None = None,
) -> Path:
    """Write a run of an encoder-decoder with so many layers per stack; return its folder."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    write(
        folder / "recipe.json", {"format_version": 1, "recipe": recipe(layers, steps, scheme, seed)}
    )
    write(
        folder / "environment.json",
        {"format_version": 1, "deepnet": "0.1.0", "packages": {"torch": "2.13.0"}},
    )
    write_lines(
        folder / "metrics.jsonl",
        [metrics(step, steps, draw) for step in range(log_every, steps + 1, log_every)],
    )
    if probes:
        readings = [
            reading(step, layers, draw) for step in range(probe_every, steps + 1, probe_every)
        ]
        write_lines(folder / "probes.jsonl", readings)
    if incidents:
        write_incidents(folder, incidents, layers, draw)
    if finished:
        write_outputs(folder, sentences)
    return folder


def recipe(layers: int, steps: int, scheme: str, seed: int) -> dict[str, Any]:
    return {
        "data": {"source_language": "de", "target_language": "en"},
        "model": {
            "architecture": "encoder_decoder",
            "encoder_layers": layers,
            "decoder_layers": layers,
            "d_model": 16,
        },
        "scheme": {"name": scheme},
        "optimizer": {"name": "adam", "lr": 0.002},
        "training": {
            "max_steps": steps,
            "seed": seed,
            "max_epochs": 0,
            "max_minutes": 0.0,
            "patience": 0,
        },
    }


def metrics(step: int, steps: int, draw: random.Random) -> dict[str, Any]:
    record = {
        "step": step,
        "epoch": 0,
        "tokens": 900 * step,
        "seconds": 0.3 * step,
        "lr": 0.002 * min(1, 4 * step / steps) * (1.0001 - step / steps),
        "progress": step / steps,
        "loss": 3 + 6 * math.exp(-5 * step / steps) + draw.gauss(0, 0.05),
        "gradient_norm": 0.7 * math.exp(draw.gauss(0, 0.1)) + 2 * math.exp(-20 * step / steps),
        "skipped_updates": 0,
        "tokens_per_second": 3000 + draw.gauss(0, 60),
    }
    if step % max(10, steps // 10 // 10 * 10) == 0:
        record["validation_loss"] = 2.4 + 6 * math.exp(-5 * step / steps)
        record["validation_bleu"] = 25 * (1 - math.exp(-4 * step / steps))
    return record


def reading(step: int, layers: int, draw: random.Random) -> dict[str, Any]:
    """Return one line of probes.jsonl; values fall or grow smoothly with the layer, with a little noise."""

    def by_layer(start: float, end: float, noise: float = 0.1) -> list[float]:
        ratio = (end / start) ** (1 / max(layers - 1, 1))
        return [
            float(f"{start * ratio**n * math.exp(draw.gauss(0, noise)):.5g}") for n in range(layers)
        ]

    late = math.exp(-step / 4000)
    sites = [(stack, site) for stack in SITES for site in SITES[stack]]
    roles = [(*place, role) for place in sites for role in ROLES[place[1]].split()]
    names = {
        "sites": [".".join(place) for place in sites],
        "roles": [".".join(place) for place in roles],
    }
    attention = [name for name in names["sites"] if not name.endswith("ffn")]
    return {
        "step": step,
        "gradient_norm": {
            **{name: by_layer(0.02 + 0.2 * late, 0.05) for name in names["roles"]},
            "embedding": [round(draw.uniform(0.3, 0.4), 4)],
        },
        "norm_input": {name: by_layer(1.1, 2.5 + 2 * late) for name in names["sites"]},
        "branch_ratio": {name: by_layer(0.5, 0.2) for name in names["sites"]},
        "similarity": {
            stack: [round(1 - x, 5) for x in by_layer(0.2, 0.05)[:-1]] for stack in SITES
        },
        "sparsity": {
            name: by_layer(0.5, 0.2, 0.02) for name in names["sites"] if name.endswith("ffn")
        },
        "attention_entropy": {name: by_layer(2.5, 1.2, 0.03) for name in attention},
        "token_mean_energy": {
            **{stack: by_layer(0.5, 4.0) for stack in SITES},
            **{name: by_layer(0.4, 2.0) for name in names["sites"]},
            **{f"{name}.varying": by_layer(0.5, 0.2) for name in names["sites"]},
        },
        "update_ratio": {name: by_layer(0.001, 0.002 * (0.1 + late)) for name in names["roles"]},
        "model_update": {
            **{stack: by_layer(0.05, 0.6 * (1.05 - late)) for stack in SITES},
            "output": [round(0.9 * (1.01 - late), 5)],
        },
        "step_update": {
            **{stack: by_layer(0.002, 0.004) for stack in SITES},
            "output": [0.005 * late],
        },
        "logit_scale": {"output": [round(2.5 - 1.5 * late, 4)]},
        "predicted_update": {"output": [round(1.0 - 0.95 * late, 5)]},
    }


def incident(step: int, kind: str = "nan", action: str = "skip", **other: Any) -> dict[str, Any]:
    return {
        "step": step, "epoch": 0, "update": step, "kind": kind, "action": action, "where": "encoder.2.ffn.fc1",
        "message": "The gradient is not finite.", "back_to": None, "loss": 7.125, "gradient_norm": None, **other,
    }  # fmt: skip


def write_incidents(
    folder: Path, incidents: Iterable[Mapping[str, Any]], layers: int, draw: random.Random
) -> None:
    (folder / "incidents").mkdir()
    for number, record in enumerate(incidents, start=1):
        name = f"incidents/{number:04}.json"
        window = list(range(max(1, record["step"] - 49), record["step"] + 1))
        values = {
            place: [[draw.uniform(0.1, 0.2) for _ in range(layers)] for _ in window]
            for place in ("encoder.self.q", "encoder.ffn.fc1", "decoder.self.q")
        }
        inputs = dict.fromkeys(("encoder.self", "encoder.ffn"), values["encoder.self.q"])
        loss = [*(7.0 + 0.01 * step for step in range(len(window) - 1)), None]
        write(
            folder / name,
            {
                "steps": window,
                "loss": loss,
                "gradient_norm": [1.5] * len(window),
                "lr": [0.001] * len(window),
                "gradient": values,
                "norm_input": inputs,
            },
        )
        with (folder / "incidents.jsonl").open("a") as file:
            file.write(json.dumps({**record, "details": name}) + "\n")


def write_outputs(folder: Path, sentences: Mapping[str, list[str]] | None) -> None:
    (folder / "outputs").mkdir()
    (folder / "bundle").mkdir()
    texts = sentences or {
        "source": [f"Satz {number} ." for number in range(40)],
        "reference": [f"Sentence {number} ." for number in range(40)],
        "translation": [f"A sentence {number} ." for number in range(40)],
    }
    for name, lines in texts.items():
        (folder / "outputs" / f"test.{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    scores = {"bleu": 20.5, "chrf": 41.25, "sentences": len(texts["source"]), "seconds": 1.0}
    write(folder / "outputs" / "test.scores.json", scores)


def write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False))


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
