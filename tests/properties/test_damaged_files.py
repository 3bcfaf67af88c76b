"""Every file of a bundle, a checkpoint and a folder of shards, damaged in every way: refused in one line, or harmless.

`python tests/properties/test_damaged_files.py 5000 7` tries 5,000 cases from seed 7 and shows each that is not.
"""

import hashlib
import json
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import cycle, islice, product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from deepnet.bundle import load_bundle, save_bundle
from deepnet.data.binarize import binarize
from deepnet.data.dataset import TextDataset
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import translate
from deepnet.errors import ConfigError, DeepNetError
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import load_scheme
from deepnet.seal import SUMS_FILE
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.loop import train_loop
from deepnet.transformer.models import Transformer, TransformerConfig

SECONDS, BYTES = 60, 1 << 30
"""What one case may take before it counts as hanging, and how much memory besides what the process has."""
ADVICE = re.compile(r"\b(again|remove|choose|delete)\b")
TEXT = [" ".join(f"w{(7 * i + j) % 20}" for j in range(1 + i % 5)) for i in range(30)]


def make_tokenizers():
    one = train_tokenizer(TEXT, config=TokenizerConfig(vocab_size=23, byte_fallback=False))
    return Tokenizers(one, one)


def make_bundle(folder):
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, d_model=8, ffn_dim=8, num_heads=2, vocab_size=23
    )
    torch.manual_seed(0)
    model = Transformer(config, load_scheme("branchnorm"))
    save_bundle(folder, model, make_tokenizers(), provenance={"steps": [3]})


def read_bundle(folder):
    bundle = load_bundle(folder)
    config = DecodingConfig(max_length_constant=5)
    logits = bundle.model(torch.tensor([[3, 4, 0]]), None, torch.tensor([[22, 5]]))
    return [*translate(bundle, TEXT[:2], config=config), logits.tolist()]


def make_checkpoint(folder):
    _train(RunFolder.create(folder, recipe={}), max_steps=4, resume=False)


def read_checkpoint(folder):
    return _train(RunFolder.open(folder), max_steps=6, resume=True)


def _train(run, *, max_steps, resume):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    updates = [ListedUpdate((torch.randn(2, 4),), 2) for _ in range(3)]
    result = train_loop(
        model,
        loader=ListedUpdates(updates),
        loss=lambda model, x: F.mse_loss(model(x), x[:, :3], reduction="sum"),
        run=run,
        training=TrainingConfig(max_steps=max_steps, save_every=4, log_every=1, ema_decay=0.9),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(name="constant", warmup_steps=0),
        resume=resume,
    )
    return [result.step, *(p.tolist() for p in model.parameters())]


def make_shards(folder):
    rows = zip(TEXT, TEXT[::-1], strict=True)
    options = {"languages": ("a", "b"), "max_length": 50, "shard_rows": 20}
    binarize(rows, folder=folder, tokenizers=make_tokenizers(), **options)


def read_shards(folder):
    data = TextDataset(folder)
    ids = [[side.tolist() for side in data[row]] for row in range(len(data))]
    longest = torch.tensor([len(side) for row in ids for side in row]).max().item()
    F.embedding(torch.tensor([i for row in ids for side in row for i in side]), torch.zeros(23, 1))
    return [ids, [side.tolist() for side in data.lengths()], longest]


SPECIMENS = {
    "bundle": (make_bundle, read_bundle, "."),
    "checkpoint": (make_checkpoint, read_checkpoint, "checkpoints/step_00000004"),
    "shards": (make_shards, read_shards, "."),
}
"""How to make one, what it comes to when it is read, and where in it the files lie that are damaged."""


def flip(content, others, draw):
    return _with_bytes(content, draw, 1, lambda byte: byte ^ (1 << draw.randrange(8)))


def scatter(content, others, draw):
    return _with_bytes(content, draw, 8, lambda _: draw.randrange(256))


def truncate(content, others, draw):
    return content[: draw.randrange(len(content) + 1)]


def shorten(content, others, draw):
    return content[:-1]


def empty(content, others, draw):
    return b""


def swap(content, others, draw):
    return draw.choice(others)


def extend(content, others, draw):
    return content + draw.randbytes(draw.choice([1, 8, 1000]))


def zero(content, others, draw):
    return bytes(len(content))


def inflate(content, others, draw):
    """Let a number that the file states be a much larger one, a negative one or none."""
    if content[:1] == b"{" or content[8:9] == b"{":
        found = list(re.finditer(rb"(?<=[ \[:,])\d+", content[:20_000]))
        if found:
            number = draw.choice(found)
            other = draw.choice([b"1000000000000", b"-1", b"null", b"1e999", b"[" * 2000])
            return content[: number.start()] + other + content[number.end() :]
    large = draw.choice([2**31, 2**40, 2**62, 2**64 - 1]).to_bytes(8, "little")
    return large + content[8:]


def _with_bytes(content, draw, number, change):
    changed = bytearray(content)
    for _ in range(number if changed else 0):
        place = draw.randrange(len(changed))
        changed[place] = change(changed[place])
    return bytes(changed)


DAMAGES = (flip, scatter, truncate, shorten, empty, swap, extend, zero, inflate)


def cases(folder, number, seed):
    """Return every combination of file, damage and whether the checksums stay, and begin again up to `number`."""
    every = [
        (kind, file.name, damage, sealed)
        for kind, (_, _, place) in SPECIMENS.items()
        for file in sorted((folder / kind / place).iterdir())
        for damage, sealed in product(DAMAGES, (True, False))
        if sealed or file.name != SUMS_FILE
    ]
    chosen = islice(cycle(every), number or len(every))
    return [(*case, random.Random(f"{seed} {place}")) for place, case in enumerate(chosen)]


def damaged(folder, name, damage, sealed, draw):
    """Damage one file; without sums as a stranger would, who makes the parts agree."""
    path = folder / name
    others = [one.read_bytes() for one in sorted(folder.iterdir()) if one != path]
    path.write_bytes(damage(path.read_bytes(), others, draw))
    if not sealed:
        (folder / SUMS_FILE).unlink()
    if not sealed and name.endswith(".model"):
        config = json.loads((folder / "config.json").read_text())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        config["tokenizer"] = {"source": digest, "target": digest}
        (folder / "config.json").write_text(json.dumps(config))


def outcome(kind, folder, expected, sealed):
    """Return what came of reading a folder: "" where that is as it should be.

    Without checksums, as in folders of earlier versions, other numbers cannot be told from the right ones. Then the
    settings of a checkpoint may be refused as another run's, and an optimiser misses a name at its first update.
    """
    try:
        found = json.dumps(SPECIMENS[kind][1](folder))
    except DeepNetError as error:
        text = str(error)
        named = str(folder) in text or (not sealed and isinstance(error, ConfigError))
        if len(text.splitlines()) != 1 or not named:
            return f"does not say in one line what is wrong with which file: {text}"
        return f"says nothing of what to do: {text}" if sealed and not ADVICE.search(text) else ""
    except Exception as error:
        missed = not sealed and kind == "checkpoint" and isinstance(error, KeyError)
        return "" if missed else f"{type(error).__name__}: {error}"
    return "WRONG AND NOTHING SAID" if sealed and found != expected else ""


def main(number, seed):
    """Try cases, 0 for each combination once; a line of the output is one that has begun, and what is wrong with it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process, also inside a C library
    with tempfile.TemporaryDirectory() as place:
        folder, now = Path(place), Path(place, "now")
        expected = {}
        for kind, (make, read, _) in SPECIMENS.items():
            make(folder / kind)
            shutil.copytree(folder / kind, now)
            expected[kind] = json.dumps(read(now))
            shutil.rmtree(now)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, held + BYTES))
        for kind, name, damage, sealed, draw in cases(folder, number, seed):
            how = f"{damage.__name__} {'sealed' if sealed else 'unsealed'}"
            print(f"\n{kind} {name} {how}", end=" ", flush=True)
            shutil.copytree(folder / kind, now)
            damaged(now / SPECIMENS[kind][2], name, damage, sealed, draw)
            signal.alarm(SECONDS)
            print(outcome(kind, now, expected[kind], sealed), end="", flush=True)
            signal.alarm(0)
            shutil.rmtree(now)
    print("\nthe end")


def test_damage_is_refused_in_one_line_or_harmless():
    command = [sys.executable, __file__, "0", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    lines = done.stdout.split("\n")[1:]
    assert lines[-2:] == ["the end", ""], f"{lines[-1]}: exit {done.returncode}\n{done.stderr}"
    found = [line.split(" ", 4) for line in lines[:-2]]
    assert [line for line in found if line[4]] == []
    tried = Counter(kind for kind, *_ in found)
    assert min(tried[kind] for kind in SPECIMENS) >= 60
    assert sum(tried.values()) >= 250


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
