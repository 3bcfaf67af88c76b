from itertools import islice

import pytest
import torch

from deepnet.bundle import Bundle, BundleConfig
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, score, translate, translations
from deepnet.errors import ConfigError, DataError
from deepnet.schemes.catalogue import describe_scheme, load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

SENTENCE = "der hund und die katze sehen ein haus am see wo kinder spielen bis es dunkel wird"
WORDS = SENTENCE.split()
LINES = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 9]) for i in range(40)]


@pytest.fixture(scope="module")
def tokenizers():
    config = TokenizerConfig(kind="words", vocab_size=len(set(WORDS)) + 3)
    one = train_tokenizer([*LINES, *WORDS], config=config)
    return Tokenizers(one, one)


def make_bundle(tokenizers, *, seed=0, **shape):
    torch.manual_seed(seed)
    config = TransformerConfig(
        **{
            "encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32, "num_heads": 2,
            "vocab_size": tokenizers.target.vocab_size,
        }
        | shape
    )  # fmt: skip
    model = Transformer(config, load_scheme("deepnorm")).double()
    record = BundleConfig(model=config, scheme=describe_scheme(model.scheme))
    return Bundle(model, tokenizers, record, path="made in a test")


@pytest.fixture(scope="module")
def bundle(tokenizers):
    return make_bundle(tokenizers)


CONFIG = DecodingConfig(beam_size=3, max_length_constant=5, max_tokens=200)


def test_lines_come_back_in_order_whatever_the_batches(bundle):
    expected = [next(translate(bundle, [line], config=CONFIG)) for line in LINES]
    assert list(translate(bundle, LINES, config=CONFIG)) == expected
    small = CONFIG.model_copy(update={"max_tokens": 40})
    assert list(translate(bundle, LINES, config=small)) == expected
    backwards = list(translate(bundle, LINES[::-1], config=CONFIG))
    assert backwards[::-1] == expected


def test_blank_lines_stay_blank(bundle):
    out = list(translate(bundle, ["", LINES[0], "  \t ", "\u00a0"], config=CONFIG))
    assert [out[0], out[2], out[3]] == ["", "", ""]
    assert out[1] == next(translate(bundle, LINES[:1], config=CONFIG))
    assert list(translate(bundle, [], config=CONFIG)) == []


def test_it_streams(bundle):
    taken = []

    def lines():
        for line in LINES:
            taken.append(line)
            yield line

    stream = translations(bundle, lines(), config=CONFIG, chunk_lines=4)
    assert len(list(islice(stream, 5))) == 5
    assert len(taken) == 8


def test_n_best_lines_carry_number_text_and_score(bundle):
    settings = CONFIG.model_copy(update={"n_best": 2})
    lines = list(translate(bundle, LINES[:2], config=settings))
    fields = [line.split(" ||| ") for line in lines]
    assert [number for number, _, _ in fields] == ["0", "0", "1", "1"]
    scores = [float(value) for _, _, value in fields]
    assert scores[0] >= scores[1]
    best = list(translate(bundle, LINES[:2], config=CONFIG))
    assert [fields[0][1], fields[2][1]] == best


def test_a_line_longer_than_the_positions_is_named(tokenizers):
    bundle = make_bundle(tokenizers, positions="learned", max_positions=12)
    lines = ["hund", "katze", "hund " * 30]
    with pytest.raises(DataError, match=r"line 3 has .* 12 positions"):
        list(translate(bundle, lines, config=CONFIG))


def test_a_line_longer_than_a_batch_is_named(bundle):
    with pytest.raises(DataError, match=r"line 2 has .* decoding\.max_tokens"):
        list(translate(bundle, ["hund", "hund " * 1000], config=CONFIG))


def test_scores_follow_the_pairs_and_equal_the_searchs(bundle):
    found = [one[0].hypothesis for one in translations(bundle, LINES, config=CONFIG)]
    encode = bundle.tokenizers.target.encode
    texts = [one[0].text for one in translations(bundle, LINES, config=CONFIG)]
    scores = list(score(bundle, zip(LINES, texts, strict=True), config=CONFIG))
    same = [i for i, text in enumerate(texts) if encode([text])[0] == found[i].tokens]
    assert (
        len(same) > len(LINES) / 2
    )  # an unknown word, or none, is not segmented as it was written
    for index in same:
        assert scores[index].log_probability == pytest.approx(
            found[index].log_probability, abs=1e-9
        )
    shuffled = list(score(bundle, zip(LINES[::-1], texts[::-1], strict=True), config=CONFIG))
    backwards = [one.score for one in scores[::-1]]
    assert [one.score for one in shuffled] == pytest.approx(backwards, abs=1e-12)


def test_an_ensemble_of_bundles_translates(bundle, tokenizers):
    both = Translator.of(bundle, make_bundle(tokenizers, seed=1, decoder_layers=1))
    assert len(list(translate(both, LINES, config=CONFIG))) == len(LINES)


def test_an_ensemble_needs_one_tokenizer(bundle):
    other = train_tokenizer(
        [*LINES, *WORDS], config=TokenizerConfig(vocab_size=38, kind="bpe", byte_fallback=False)
    )
    with pytest.raises(ConfigError, match="different tokenizers"):
        Translator.of(bundle, make_bundle(Tokenizers(other, other)))


def test_only_an_encoder_decoder_with_a_tokenizer_translates(tokenizers):
    language_model = make_bundle(tokenizers, architecture="decoder_only", encoder_layers=0)
    with pytest.raises(ConfigError, match="decoder_only"):
        Translator.of(language_model)
    bundle = make_bundle(tokenizers)
    with pytest.raises(ConfigError, match="no tokenizer"):
        Translator.of(Bundle(bundle.model, None, bundle.config, bundle.path))
