"""Whether translations depend on anything but the sentence, on a trained model and real text.

    python benchmarks/invariance.py runs/demo/deepnorm runs/demo/deepnorm/outputs/test.source.txt

Prints, and writes to results/invariance, the share of sentences translated alike under other batch sizes, orders and
padding, in float64 and float32; the forced scores where they differ; cached against full decoding; the search's score
against the forced one; beam 1 against greedy.
"""

import argparse
import json
import random
from pathlib import Path

import torch

from deepnet.bundle import Bundle, load_bundle
from deepnet.data.tokenizer import EOS
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.scoring import score_tokens
from deepnet.decoding.translate import translations
from deepnet.pipeline.opening import bundle_path

BEAM, GREEDY = DecodingConfig(beam_size=5), DecodingConfig(beam_size=1)
SMALL = DecodingConfig(beam_size=5, max_tokens=300)


def decode(bundle: Bundle, lines: list[str], config: DecodingConfig) -> list:
    """Return the best hypothesis of every line."""
    return [found[0].hypothesis for found in translations(bundle, lines, config=config)]


def shuffled(bundle: Bundle, lines: list[str]) -> list:
    """Translate in another order, in other batches with other padding, and put the results back in order."""
    order = random.Random(1).sample(range(len(lines)), len(lines))
    found = decode(bundle, [lines[i] for i in order], SMALL)
    return [
        hypothesis for _, hypothesis in sorted(zip(order, found, strict=True), key=lambda p: p[0])
    ]


def alike(first: list, second: list) -> float:
    """Return the share of equal outputs."""
    return sum(a.tokens == b.tokens for a, b in zip(first, second, strict=True)) / len(first)


def forced(bundle: Bundle, lines: list[str], hypotheses: list) -> list[float]:
    """Return the model's own log-probability of each hypothesis."""
    sources = [[*ids, EOS] for ids in bundle.tokenizers.source.encode(lines)]
    padding, scores = bundle.tokenizers.source.pad, []
    for start in range(0, len(lines), 100):
        part = slice(start, start + 100)
        targets = [h.tokens for h in hypotheses[part]]
        found = score_tokens(bundle.model, sources[part], targets, source_padding=padding)
        scores += [one.log_probability for one in found]
    return scores


@torch.no_grad()
def greedy_without_cache(bundle: Bundle, line: str, length: int) -> list[int]:
    """Return the greedy output of one line, the whole prefix computed anew at each step."""
    source = torch.tensor([[*bundle.tokenizers.source.encode([line])[0], EOS]])
    prefix = [bundle.model.start]
    while len(prefix) <= length:
        logits = bundle.model(source, None, torch.tensor([prefix]))
        prefix.append(int(logits[0, -1].argmax()))
        if prefix[-1] == EOS:
            break
    return [token for token in prefix[1:] if token != EOS]


def relative(a: list[float], b: list[float]) -> float:
    """Return the largest relative difference."""
    return max((abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b, strict=True)), default=0.0)


def examine(bundle: Bundle, lines: list[str]) -> dict[str, float]:
    """Return all shares and differences for the model in the precision it has."""
    plain, other = decode(bundle, lines, BEAM), shuffled(bundle, lines)
    differing = [i for i in range(len(lines)) if plain[i].tokens != other[i].tokens]
    texts = [lines[i] for i in differing]
    scores = [forced(bundle, texts, [found[i] for i in differing]) for found in (plain, other)]
    greedy = decode(bundle, lines, GREEDY)
    recomputed = [
        greedy_without_cache(bundle, line, len(one.tokens) + 5)
        for line, one in zip(lines[:200], greedy, strict=False)
    ]
    return {
        "sentences": len(lines),
        "alike_in_other_batches_and_order": alike(plain, other),
        "largest_relative_difference_of_forced_scores_where_not_alike": relative(*scores),
        "largest_relative_difference_of_search_and_forced_score": relative(
            [one.log_probability for one in plain], forced(bundle, lines, plain)
        ),
        "alike_beam_1_and_greedy_without_cache_200_sentences": sum(
            a == b.tokens for a, b in zip(recomputed, greedy, strict=False)
        )
        / len(recomputed),
    }


def main() -> None:
    """Examine one model in float64 and float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    given = parser.parse_args()
    lines = given.text.read_text(encoding="utf-8").splitlines()[: given.sentences]
    results = {}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        bundle = load_bundle(bundle_path(given.run))
        bundle.model.to(dtype)
        results[name] = examine(bundle, lines)
        print(name, json.dumps(results[name], indent=1), flush=True)
    path = Path(__file__).parents[1] / "results" / "invariance" / "demo.json"
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
