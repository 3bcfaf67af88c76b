"""Bundles written by earlier versions load and translate as they did then.

`python tests/compat/test_compat_bundles.py NAME` trains and adds one with the version at hand; those that are there are
never written again.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import pytest

from deepnet.bundle import load_bundle
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import score, translate
from deepnet.pipeline.recipe import parse_recipe
from deepnet.pipeline.run import run_recipe

HERE = Path(__file__).parent
BUNDLES = sorted(path.parent for path in HERE.glob("*/expected.json"))
WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "acht": "eight"}
LINES = ["eins zwei", "drei vier acht", "", "zwei zwei eins vier"]
GREEDY = DecodingConfig(beam_size=1)


def outputs(bundle_path: Path) -> dict[str, list]:
    """Return translations of LINES and the scores of word-by-word references."""
    bundle = load_bundle(bundle_path)
    pairs = [(line, " ".join(WORDS[w] for w in line.split())) for line in LINES if line]
    return {
        "translations": list(translate(bundle, LINES, config=GREEDY)),
        "scores": [found.log_probability for found in score(bundle, pairs, config=GREEDY)],
    }


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.name)
def test_an_earlier_bundle_translates_as_it_did(path):
    expected, found = json.loads((path / "expected.json").read_text()), outputs(path / "bundle")
    assert found["translations"] == expected["translations"]
    assert found["scores"] == pytest.approx(expected["scores"], rel=1e-4)


def test_there_is_a_bundle_of_the_first_format():
    versions = [json.loads((p / "bundle" / "config.json").read_text()) for p in BUNDLES]
    assert 1 in {config["format_version"] for config in versions}


def _add(name: str) -> None:
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        text = [generator.choices(list(WORDS), k=generator.randint(2, 6)) for _ in range(600)]
        for language, lines in {
            "de": text,
            "en": [[WORDS[word] for word in line] for line in text],
        }.items():
            content = "".join(" ".join(line) + "\n" for line in lines)
            Path(folder, f"text.{language}").write_text(content)
        recipe = {
            "data": {"train_source": f"{folder}/text.de", "train_target": f"{folder}/text.en",
                     "source_language": "de", "target_language": "en"},
            "tokenizer": {"vocab_size": 28, "byte_fallback": False},
            "batching": {"max_tokens": 256},
            "model": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32,
                      "num_heads": 2},
            "scheme": {"name": "branchnorm", "T": 400},
            "optimizer": {"lr": 5e-3},
            "schedule": {"warmup_steps": 50},
            "training": {"max_steps": 300},
        }  # fmt: skip
        run = run_recipe(parse_recipe(recipe), out=f"{folder}/run", cache=Path(folder, "cache"))
        target = HERE / name
        target.mkdir()
        run.bundle.rename(target / "bundle")
    (target / "expected.json").write_text(json.dumps(outputs(target / "bundle"), indent=1) + "\n")


if __name__ == "__main__":
    _add(sys.argv[1])
