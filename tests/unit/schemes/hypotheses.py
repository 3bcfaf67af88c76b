"""What decoding with a cache has to hold under any attention, positions and scheme."""

import torch


@torch.no_grad()
def check_cached_hypotheses(model, source, source_keep):
    """Raise AssertionError where a cached step's logits are not those of the whole prefix, in float64 to 1e-11.

    Hypotheses branch, change their number and lose dead entries, also in another order; two sentences change places.
    """
    padding = model.start
    memory = model.encode(source, source_keep) if model.encoder else None
    cache = model.begin(memory, source_keep if model.encoder else None)
    prefixes, keep = torch.full((2, 1, 1), padding), torch.ones(2, 1, 1, dtype=torch.bool)
    generator = torch.Generator().manual_seed(1)
    for position, width in enumerate([3, 2, 4, 1, 3, 5, 2, 3]):
        found = model.step(prefixes[..., -1], position, cache, keep)
        for w in range(prefixes.shape[1]):
            read = (source, source_keep, prefixes[:, w]) if model.encoder else (prefixes[:, w],)
            torch.testing.assert_close(found[:, w], model(*read)[:, -1], rtol=0, atol=1e-11)
        parents = torch.randint(prefixes.shape[1], (2, width), generator=generator)
        rows = torch.arange(2)[:, None]
        new = torch.randint(2, padding, (2, width, 1), generator=generator)
        prefixes, keep = torch.cat([prefixes[rows, parents], new], 2), keep[rows, parents]
        if position % 3 == 1:
            alive = keep.any(1)
            # the dead last, the others mixed
            order = torch.rand(alive.shape, generator=generator) + alive
            entries = order.argsort(dim=1, descending=True)[:, : int(alive.sum(1).max())]
            cache.retain(entries)
            keep = keep.gather(2, entries[:, None].expand(-1, width, -1))
        if position == 4:
            turned_round = torch.tensor([1, 0])
            cache.select(turned_round)
            source, source_keep = source[turned_round], source_keep[turned_round]
            prefixes, keep = prefixes[turned_round], keep[turned_round]
        own = torch.eye(width, dtype=torch.bool).expand(2, -1, -1)
        keep = torch.cat([keep, own], 2)
