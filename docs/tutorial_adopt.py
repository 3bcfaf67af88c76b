"""The run of docs/tutorial_adopt.md: a BERT of 100 layers restores damaged text, with and without one added line.

Usage: python docs/tutorial_adopt.py plain|deepnorm|... [--layers 100] [--steps 150] [--rate 1e-3] [--init 0.07]
[--embeddings 1]: by how much faster the embeddings learn
"""

import argparse
import gzip
import time
from importlib.resources import files

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from deepnet import apply_scheme, parameter_groups

LENGTH, BATCH = 32, 8
MASK = 1


def text() -> Tensor:
    """Return windows [N, 32] of letter ids, of English sentences that come with deepnet."""
    path = files("deepnet.data") / "builtin" / "tatoeba-en-de" / "train.en.gz"
    letters = gzip.decompress(path.read_bytes())[: 60_000 * LENGTH]
    return torch.tensor(list(letters), dtype=torch.int64).clamp_max(127).view(-1, LENGTH)


def batch(windows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and labels [8, 32]: 15% of the letters are masked, all of them are to be given back."""
    rows = windows[torch.randint(len(windows), (BATCH,), generator=generator)]
    hidden = torch.rand(rows.shape, generator=generator) < 0.15
    return rows.masked_fill(hidden, MASK), rows


def main() -> None:
    """Train and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scheme")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--init", type=float, default=0.07)
    parser.add_argument("--embeddings", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=128,
            hidden_size=64,
            num_hidden_layers=args.layers,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
            initializer_range=args.init,
        )
    )
    if args.scheme != "plain":
        chosen = {} if args.embeddings == 1 else {"embedding_lr_multiplier": args.embeddings}
        print(apply_scheme(model, args.scheme, ends=chosen))
    model.train()
    windows, generator = text(), torch.Generator().manual_seed(args.seed)
    groups = (
        model.parameters()
        if args.embeddings == 1
        else parameter_groups(model, lr=args.rate, weight_decay=0.01)
    )
    optimizer = torch.optim.AdamW(groups, lr=args.rate)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 30))
    total, start = 0.0, time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs, labels = batch(windows, generator)
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        total += loss.item()
        if step % 20 == 0:
            print(
                f"update {step}: loss {total / 20:.3f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            total = 0.0


if __name__ == "__main__":
    main()
