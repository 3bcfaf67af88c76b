"""Why `transformer/attend.py` chooses as it does: torch's attention against three products, forward and backward.

    python benchmarks/attention.py

Prints the ratio of CPU times (above 1: three products are faster) per type and number of keys, on one thread.
"""

import time

import torch
import torch.nn.functional as F

from deepnet.transformer.attend import _ProductAttention
from deepnet.transformer.masks import score_bias

TOKENS, HEADS, SIZE, REPEATS = 1024, 4, 32, 60


def seconds(attention, tensors):
    for warm_up in (True, False):
        start = time.process_time()
        for _ in range(5 if warm_up else REPEATS):
            q, k, v = (x.detach().requires_grad_() for x in tensors)
            out = attention(q, k, v)
            out.backward(torch.ones_like(out))
    return (time.process_time() - start) / REPEATS


def ratio(length, dtype):
    batch = max(4, TOKENS // length)
    shape = batch, length, HEADS, SIZE
    tensors = [torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(3)]
    keep = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    keep[::2, ..., -2:] = False
    scale = SIZE**-0.5
    torchs = seconds(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=keep), tensors
    )
    products = seconds(
        lambda q, k, v: _ProductAttention.apply(
            q, k, v, score_bias(keep, None, dtype=dtype), scale
        ),
        tensors,
    )
    return torchs / products


def main():
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        for length in (6, 8, 11, 12, 15, 16, 17, 20, 24, 29, 32, 37, 48, 64):
            print(f"{str(dtype)[6:]:>8} {length:>3} keys  {ratio(length, dtype):5.2f}", flush=True)


if __name__ == "__main__":
    main()
