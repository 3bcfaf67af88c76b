"""The cache of one attention: what is kept, dropped and added is there, in order."""

import torch

from deepnet.transformer.cache import KeyValues


def test_entries_come_after_those_that_were_retained():
    cache, first = KeyValues(), torch.randn(2, 3, 6, 4)
    cache.append(first, -first)
    entries = torch.tensor([[0, 2, 5], [1, 2, 3]])
    cache.retain(entries)
    kept = torch.stack([first[row][:, places] for row, places in enumerate(entries)])
    keys, values = cache.get()
    torch.testing.assert_close(keys, kept, rtol=0, atol=0)
    new = torch.randn(2, 3, 20, 4)  # more than there is room for
    keys, values = cache.append(new, 2 * new)
    torch.testing.assert_close(keys, torch.cat([kept, new], 2), rtol=0, atol=0)
    torch.testing.assert_close(values, torch.cat([-kept, 2 * new], 2), rtol=0, atol=0)
    cache.select(torch.tensor([1]))
    torch.testing.assert_close(cache.get()[0], torch.cat([kept, new], 2)[1:], rtol=0, atol=0)
