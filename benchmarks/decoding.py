"""Beam-5 sentences/s of ours against Hugging Face generate, on one trained model's weights.

    sh benchmarks/setup_peers.sh
    benchmarks/.venv/bin/python benchmarks/decoding.py BUNDLE TEXT
    benchmarks/.venv/bin/python benchmarks/table.py

BUNDLE is a trained Post-LN model (sinusoidal positions, ReLU, one shared embedding); its weights are
copied into a MarianMTModel and the two must agree on the logits before anything is timed. Both get
the same batches in the same order, one limit for every sentence, the same length normalisation and
the same rule to stop (a sentence is done when it has as many finished outputs as the beam is wide).
Within a round they take turns batch by batch.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers.models.marian.modeling_marian import MarianMTModel

from deepnet.bundle import Bundle, load_bundle
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.search import search
from deepnet.transformer.models import Transformer
from marian_copy import EOS, copy_to_marian, largest_difference
from measuring import ratios, save, spread

TOLERANCE = 1e-4
Decode = Callable[[Tensor, Tensor], list[list[int]]]


@dataclass(frozen=True)
class SourceBatch:
    """Sentences of similar length: ids [B, S] with their mask, and their number in the file."""

    source: Tensor
    keep: Tensor
    numbers: list[int]


def make_batches(bundle: Bundle, lines: list[str], size: int) -> list[SourceBatch]:
    """Sort by length, longest first, and cut into batches of `size` sentences."""
    ids = [[*sentence, EOS] for sentence in bundle.tokenizers.source.encode(lines)]
    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
    pad = bundle.model.config.vocab_size - 1
    return [make_batch(ids, order[i : i + size], pad) for i in range(0, len(order), size)]


def make_batch(ids: list[list[int]], numbers: list[int], pad: int) -> SourceBatch:
    longest = max(len(ids[number]) for number in numbers)
    source = torch.full((len(numbers), longest), pad)
    for row, number in enumerate(numbers):
        source[row, : len(ids[number])] = torch.tensor(ids[number])
    return SourceBatch(source, source != pad, numbers)


def ours(model: Transformer, options: argparse.Namespace) -> Decode:
    """Our search, every output limited to `options.limit` tokens without the end."""
    config = DecodingConfig(
        beam_size=options.beam,
        length_penalty=options.length_penalty,
        max_length_ratio=0.0,
        max_length_constant=options.limit,
    )

    def decode(source: Tensor, keep: Tensor) -> list[list[int]]:
        return [found[0].tokens for found in search(model, source, keep, config=config)]

    return decode


def theirs(marian: MarianMTModel, options: argparse.Namespace) -> Decode:
    """Hugging Face generate; its limit counts the end of the sentence."""

    def decode(source: Tensor, keep: Tensor) -> list[list[int]]:
        with torch.inference_mode():
            rows = marian.generate(
                input_ids=source,
                attention_mask=keep.long(),
                num_beams=options.beam,
                length_penalty=options.length_penalty,
                max_new_tokens=options.limit + 1,
                early_stopping=True,
                do_sample=False,
            )
        return [until_end(row[1:]) for row in rows.tolist()]

    return decode


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids


def run_round(
    decoders: dict[str, Decode], batches: list[SourceBatch]
) -> tuple[dict[str, float], dict[str, dict[int, list[int]]]]:
    """Decode every batch with everyone: seconds and outputs by name."""
    seconds = dict.fromkeys(decoders, 0.0)
    outputs: dict[str, dict[int, list[int]]] = {name: {} for name in decoders}
    for index, batch in enumerate(batches):
        for name in sorted(decoders, reverse=index % 2 == 1):
            start = time.perf_counter()
            found = decoders[name](batch.source, batch.keep)
            seconds[name] += time.perf_counter() - start
            outputs[name].update(zip(batch.numbers, found, strict=True))
    return seconds, outputs


def check_logits(bundle: Bundle, marian: MarianMTModel, batch: SourceBatch) -> float:
    """Feed both one batch, its source also as the target; stop where they differ."""
    start = torch.full((len(batch.source), 1), bundle.model.config.vocab_size - 1)
    target_in = torch.cat([start, batch.source[:, :-1]], dim=1)
    found = largest_difference(bundle.model, marian, batch.source, batch.keep, target_in)
    if not found <= TOLERANCE:
        raise SystemExit(f"the two models' logits differ by {found:.1e}; at most {TOLERANCE}")
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("text", type=Path, help="source sentences, one per line")
    parser.add_argument("--sentences", type=int, default=200, help="how many lines, from the top")
    parser.add_argument("--batch", type=int, default=32, help="sentences in one batch")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--limit", type=int, default=100, help="longest output in tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="print, save nothing")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    bundle = load_bundle(options.bundle)
    bundle.model.eval()
    marian = copy_to_marian(bundle.model, bundle.config.scheme["name"])
    lines = options.text.read_text(encoding="utf-8").splitlines()[: options.sentences]
    batches = make_batches(bundle, lines, options.batch)
    difference = check_logits(bundle, marian, batches[len(batches) // 2])
    decoders = {
        "ours": ours(bundle.model, options),
        "ours (again)": ours(bundle.model, options),
        "Hugging Face generate": theirs(marian, options),
    }
    run_round(decoders, batches[-1:])
    rounds = []
    for index in range(options.rounds):
        seconds, outputs = run_round(decoders, batches)
        rounds.append({name: len(lines) / spent for name, spent in seconds.items()})
        print(f"round {index + 1}: {rounds[-1]}", flush=True)
    result = summary(rounds, outputs) | {
        "config": vars(options) | {"bundle": options.bundle.name, "text": options.text.name},
        "model": bundle.model.config.model_dump(),
        "largest logit difference": difference,
    }
    print(result if options.dry_run else save("decoding", result))


def summary(
    rounds: list[dict[str, float]], outputs: dict[str, dict[int, list[int]]]
) -> dict[str, object]:
    """Speeds, ratios of ours to the others, and how many outputs are the same."""
    speeds = {name: [found[name] for found in rounds] for name in rounds[0]}
    first, other = outputs["ours"], outputs["Hugging Face generate"]
    same = sum(first[number] == other[number] for number in first)
    return {
        "sentences_per_second": {name: spread(values) for name, values in speeds.items()},
        "rounds": speeds,
        "ours relative to": {
            name: ratios(speeds["ours"], values)
            for name, values in speeds.items()
            if name != "ours"
        },
        "sentences": len(first),
        "identical outputs": same / len(first),
    }


if __name__ == "__main__":
    main()
