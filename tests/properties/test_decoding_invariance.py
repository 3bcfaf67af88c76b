"""What must not change a translation: the batch, the padding, the order, the cache; and scores that must agree."""

import pytest
import torch

from deepnet.decoding.batches import pad, plan
from deepnet.decoding.ensemble import Ensemble
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.scoring import score_tokens
from deepnet.decoding.search import search
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

VOCAB = 23
PAD = VOCAB - 1
SCHEMES = ["deepnorm", "pre_ln", "branchnorm"]
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative"]


def make_model(scheme="deepnorm", positions="sinusoidal", *, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=2, decoder_layers=3, d_model=16, ffn_dim=32, num_heads=2, vocab_size=VOCAB,
        positions=positions, max_positions=64, dropout=0.3,
    )  # fmt: skip
    model = Transformer(config, load_scheme(scheme)).to(dtype).eval()
    with torch.no_grad():
        # decided distributions, so that outputs differ; eos, which comes in at first, is not what comes out
        model.target_embedding.weight[1:] *= 3
    return model


def make_sources(count, *, seed=0, longest=12):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    draw = [torch.randint(1, PAD, (length,), generator=generator).tolist() for length in lengths]
    return [[*ids, 0] for ids in draw]


def run(model, sources, config, *, order=None, max_tokens=10_000, extra_padding=0):
    """Search batch by batch; the results in the order of `sources`."""
    order = order or list(range(len(sources)))
    results = [None] * len(sources)
    for batch in plan([len(sources[i]) for i in order], max_tokens=max_tokens):
        places = [order[i] for i in batch]
        source, keep = pad([sources[i] for i in places], padding=PAD, device=torch.device("cpu"))
        if extra_padding:
            keep = torch.ones_like(source, dtype=torch.bool) if keep is None else keep
            source = torch.nn.functional.pad(source, (0, extra_padding), value=PAD)
            keep = torch.nn.functional.pad(keep, (0, extra_padding), value=False)
        for place, found in zip(places, search(model, source, keep, config=config), strict=True):
            results[place] = found
    return results


def tokens(results):
    return [[hypothesis.tokens for hypothesis in found] for found in results]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_batch_padding_and_order_do_not_change_translations(scheme, positions):
    model, sources = make_model(scheme, positions), make_sources(16)
    config = DecodingConfig(beam_size=4, n_best=3, max_length_constant=6)
    one_by_one = run(model, sources, config, max_tokens=1)
    expected = tokens(one_by_one)
    assert len({tuple(found[0]) for found in expected}) > 5  # the model does not say one thing only
    assert tokens(run(model, sources, config)) == expected
    assert tokens(run(model, sources, config, max_tokens=40)) == expected
    assert tokens(run(model, sources, config, order=list(range(15, -1, -1)))) == expected
    assert tokens(run(model, sources, config, extra_padding=7)) == expected
    scores = [h.score for found in run(model, sources, config) for h in found]
    alone = [h.score for found in one_by_one for h in found]
    assert scores == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("positions", POSITIONS)
@torch.inference_mode()
def test_cached_steps_equal_full_recomputation(scheme, positions):
    """Hypotheses branch, die and change their number, sentences leave: every step against the whole prefix."""
    model, sources = make_model(scheme, positions), make_sources(5)
    source, source_keep = pad(sources, padding=PAD, device=torch.device("cpu"))
    cache = model.begin(model.encode(source, source_keep), source_keep)
    generator = torch.Generator().manual_seed(1)
    prefixes, keep = torch.full((5, 1, 1), PAD), torch.ones(5, 1, 1, dtype=torch.bool)
    for position, columns in enumerate([2, 3, 4, 4, 1, 3, 2, 5]):
        logits = model.step(prefixes[..., -1], position, cache, keep)
        for w in range(prefixes.shape[1]):
            full = model(source, source_keep, prefixes[:, w])[:, -1]
            assert torch.allclose(logits[:, w], full, rtol=0, atol=1e-10)
        rows = torch.randperm(len(source), generator=generator)[: 5 - position // 3]
        cache.select(rows)
        source, source_keep = source[rows], source_keep[rows]
        parents = torch.randint(prefixes.shape[1], (len(rows), columns), generator=generator)
        tokens = torch.randint(1, PAD, (len(rows), columns, 1), generator=generator)
        prefixes = torch.cat([prefixes[rows[:, None], parents], tokens], 2)
        keep = keep[rows[:, None], parents]
        if position % 3 == 1:  # drop what is nobody's ancestor, as search does now and then
            alive = keep.any(1)
            size = int(alive.sum(1).max())
            entries = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :size]
            cache.retain(entries)
            keep = keep.gather(2, entries[:, None].expand(-1, columns, -1))
        own = torch.eye(columns, dtype=torch.bool).expand(len(rows), -1, -1)
        keep = torch.cat([keep, own], 2)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_searchs_score_is_the_forced_score(penalty, dtype):
    model, sources = make_model(dtype=dtype), make_sources(20)
    config = DecodingConfig(beam_size=4, n_best=4, length_penalty=penalty, max_length_constant=6)
    for source, found in zip(sources, run(model, sources, config), strict=True):
        forced = score_tokens(
            model, [source] * len(found), [h.tokens for h in found],
            source_padding=PAD, length_penalty=penalty,
        )  # fmt: skip
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        assert [h.score for h in found] == pytest.approx([f.score for f in forced], rel=tolerance)
        totals = [f.log_probability for f in forced]
        assert [h.log_probability for h in found] == pytest.approx(totals, rel=tolerance)


@torch.inference_mode()
def greedy(model, source, limit):
    """Recompute everything at every token."""
    ids = [PAD]
    while True:
        logits = model(torch.tensor([source]), None, torch.tensor([ids]))[0, -1]
        token = int(logits.argmax()) if len(ids) <= limit else 0
        if token == 0:
            return ids[1:]
        ids.append(token)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_beam_1_is_greedy(scheme):
    model, sources = make_model(scheme), make_sources(30)
    config = DecodingConfig(beam_size=1, max_length_ratio=1.0, max_length_constant=5)
    found = run(model, sources, config)
    assert [h[0].tokens for h in found] == [greedy(model, s, len(s) + 5) for s in sources]


def test_samples_do_not_depend_on_the_batch():
    model, sources = make_model(), make_sources(12)
    config = DecodingConfig(method="sampling", n_best=3, max_length_constant=6, top_p=0.9)
    source, keep = pad(sources, padding=PAD, device=torch.device("cpu"))
    together = search(model, source, keep, config=config, lines=range(100, 112))
    for number, ids in enumerate(sources):
        alone = search(model, torch.tensor([ids]), None, config=config, lines=[100 + number])
        assert tokens(alone) == tokens(together[number : number + 1])


def test_an_ensemble_of_different_depths_is_invariant_too():
    ensemble = Ensemble([make_model(), make_model("pre_ln", "rotary", seed=1)])
    sources, config = make_sources(15), DecodingConfig(beam_size=3, max_length_constant=6)
    expected = tokens(run(ensemble, sources, config, max_tokens=1))
    assert tokens(run(ensemble, sources, config)) == expected
