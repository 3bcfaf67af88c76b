"""Subwords: a SentencePiece model seen through deepnet's ids (eos 0, unk 1, everything else, pad last).

A model trained on one text has a piece for a masked token, too: a control symbol, which no text is ever split into.

A model trained here already has eos and unk where we want them; in a model from elsewhere they are moved, so that
any SentencePiece model can be used as it is. Pad is an id of ours, one past the pieces of the model.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Self

import sentencepiece
from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.errors import DataError
from deepnet.seal import read_regular

EOS = 0
UNK = 1
MASK_PIECE = "<mask>"
"""The piece that stands for a masked token, in a model that has it."""
_NO_LENGTH_LIMIT = (
    1 << 24
)  # bytes; SentencePiece would silently skip lines longer than its own default
_TRAINER_THREADS = 16  # part of the result: it decides the order in which floats are added up
_SHARED_FILE, _SOURCE_FILE, _TARGET_FILE = "tokenizer.model", "source.model", "target.model"
MODEL_FIELDS = ("source_model", "target_model")
"""The keys of the section that are paths."""


class TokenizerConfig(Section):
    """How text becomes ids: a SentencePiece model trained on the training part, or existing models."""

    kind: Literal["unigram", "bpe", "words"] = "unigram"
    """Subword model; "words" takes text that is already tokenised and splits it at white space only."""
    vocab_size: Annotated[int, Field(ge=4)] = 8000
    """Number of ids of each vocabulary, padding and (of one text) the mask included."""
    shared: bool = True
    """One vocabulary for both languages (needed to tie all embeddings) instead of one each."""
    byte_fallback: bool = True
    """Write characters outside the vocabulary as UTF-8 bytes (256 of the ids) instead of as unknown."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995
    """Share of the running characters that must be in the vocabulary."""
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = "nmt_nfkc"
    """SentencePiece's name for the Unicode normalisation applied before splitting."""
    sample_lines: Annotated[int, Field(ge=1)] = 2_000_000
    """Most lines per language the model is trained on, taken evenly over the training part."""
    source_model: str = ""
    """Path of an existing SentencePiece model to use instead of training one."""
    target_model: str = ""
    """Path of the target language's own existing model; empty: `source_model` serves both."""

    @model_validator(mode="after")
    def _refuse_options_without_effect(self) -> Self:
        if self.target_model and not self.source_model:
            raise ValueError("'target_model' needs 'source_model'; give both, or neither")
        changed = set(self.model_dump(exclude_defaults=True))
        if self.source_model:
            ignored = changed - {"source_model", "target_model"}
            reason = "an existing model ('source_model') decides it"
        elif self.kind == "words":
            ignored = changed & {"byte_fallback", "character_coverage", "normalization"}
            reason = "kind = 'words' takes the text as it is"
        else:
            return self
        if ignored:
            raise ValueError(f"'{min(ignored)}' has no effect here: {reason}; remove it")
        return self


class Tokenizer:
    """One SentencePiece model; ids are deepnet's: `eos`, `unk`, the other pieces, `pad` last."""

    eos = EOS
    unk = UNK

    def __init__(self, model: bytes):
        """Wrap the bytes of a SentencePiece model; raises DataError when they are not one."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        except (RuntimeError, UnicodeDecodeError) as error:
            raise DataError(
                "this is not a SentencePiece model; expected a .model file, whole"
            ) from error
        special = [self._processor.eos_id(), self._processor.unk_id()]
        others = (i for i in range(self._processor.get_piece_size()) if i not in special)
        self._theirs: list[int] = [*special, *others]  # -1 where the model has no eos of its own
        self._ours = {theirs: ours for ours, theirs in enumerate(self._theirs)}
        self._same_ids = self._theirs == list(range(len(self._theirs)))

    @property
    def vocab_size(self) -> int:
        """Number of ids, padding included."""
        return len(self._theirs) + 1

    @property
    def pad(self) -> int:
        """The id of padding: the last one."""
        return len(self._theirs)

    @property
    def mask(self) -> int | None:
        """The id of a masked token, or None where the model has no piece for it."""
        return self.find_piece(MASK_PIECE)

    def find_piece(self, piece: str) -> int | None:
        """Return the id of a piece, or None where the model has none such."""
        theirs: int = self._processor.piece_to_id(piece)
        return None if self._processor.is_unknown(theirs) else self._ours[theirs]

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the model's bytes."""
        return hashlib.sha256(self.model).hexdigest()

    def pieces(self) -> list[str]:
        """Return the piece of every id except padding, in the order of the ids."""
        return ["</s>" if i < 0 else self._processor.id_to_piece(i) for i in self._theirs]

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes]]:
        """Go to another process as the model alone."""
        return Tokenizer, (self.model,)

    def encode(self, lines: list[str], *, num_threads: int | None = None) -> list[list[int]]:
        """Return the ids of each line, without eos; in one thread per core unless told otherwise."""
        threads = -1 if num_threads is None else num_threads
        encoded: list[list[int]] = self._processor.encode(lines, out_type=int, num_threads=threads)
        if self._same_ids:
            return encoded
        return [[self._ours[i] for i in ids] for ids in encoded]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return the text of each list of ids; eos and pad are left out."""
        ignored = (self.eos, self.pad)
        theirs = [[self._theirs[i] for i in line if i not in ignored] for line in ids]
        return [self._processor.decode(line) for line in theirs]

    def save(self, path: str | Path) -> None:
        """Write the SentencePiece model to `path`."""
        Path(path).write_bytes(self.model)

    @classmethod
    def load(cls, path: str | Path, *, expected: str | None = None) -> "Tokenizer":
        """Read a SentencePiece model; raises DataError when there is none at `path`.

        `expected` is its fingerprint where that is known: a file with another one is not even parsed.
        """
        try:
            model = read_regular(path)
            if expected not in (None, hashlib.sha256(model).hexdigest()):
                raise DataError(
                    "it is damaged or not the one the model was trained with; copy it again"
                )
            return cls(model)
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; one and the same object when the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether both sides have the same vocabulary."""
        return self.source.fingerprint == self.target.fingerprint

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.model, or source.model and target.model, into an existing folder."""
        if self.shared:
            self.source.save(Path(folder) / _SHARED_FILE)
        else:
            self.source.save(Path(folder) / _SOURCE_FILE)
            self.target.save(Path(folder) / _TARGET_FILE)

    @classmethod
    def load(cls, folder: str | Path, *, expected: Mapping[str, str] | None = None) -> "Tokenizers":
        """Read what `save` wrote; raises DataError when a model is missing or damaged.

        `expected` are the fingerprints of "source" and "target": a model with another one is not even parsed.
        """
        sides = zip(model_files(folder), ("source", "target"), strict=False)
        models = [Tokenizer.load(file, expected=(expected or {}).get(side)) for file, side in sides]
        return cls(models[0], models[-1])


def model_files(folder: str | Path) -> tuple[Path, ...]:
    """Return where `Tokenizers.save` wrote into a folder: one model that serves both sides, or one for each."""
    shared = Path(folder) / _SHARED_FILE
    return (
        (shared,) if shared.exists() else (Path(folder) / _SOURCE_FILE, Path(folder) / _TARGET_FILE)
    )


def make_tokenizers(
    texts: Sequence[Iterable[str]], *, num_lines: int, config: TokenizerConfig
) -> Tokenizers:
    """Load the models named by `config`, or train them on the texts, one per side, of `num_lines` lines each.

    A text is read once, and not before the one in front of it. A model trained on one text alone has the piece for a
    masked token, and serves as both. Raises DataError when a model cannot be read, or when the text is too small for
    the vocabulary.
    """
    if config.source_model:
        left = Tokenizer.load(config.source_model)
        return Tokenizers(
            left, Tokenizer.load(config.target_model) if config.target_model else left
        )
    samples = [
        evenly_spaced(lines, total=num_lines, at_most=config.sample_lines) for lines in texts
    ]
    if len(texts) == 1 or config.shared:
        mask = (MASK_PIECE,) if len(texts) == 1 else ()
        joint = train_tokenizer(chain(*samples), config=config, control_symbols=mask)
        return Tokenizers(joint, joint)
    return Tokenizers(*(train_tokenizer(lines, config=config) for lines in samples))


def make_joint_tokenizer(
    texts: Iterable[tuple[Iterable[str], int]],
    *,
    control_symbols: Sequence[str],
    config: TokenizerConfig,
) -> Tokenizers:
    """Load the model named by `config`, or train one on many texts, each with its number of lines, read one by one.

    Raises DataError where a model that is given lacks one of the `control_symbols`, and as `make_tokenizers` does.
    """
    if config.source_model:
        joint = Tokenizer.load(config.source_model)
        if lacking := [piece for piece in control_symbols if joint.find_piece(piece) is None]:
            raise DataError(
                f"{config.source_model} has no piece '{lacking[0]}', which asks for a language; leave out "
                "tokenizer.source_model, or train it with that control symbol"
            )
        return Tokenizers(joint, joint)
    samples = (evenly_spaced(lines, total=n, at_most=config.sample_lines) for lines, n in texts)
    joint = train_tokenizer(
        chain.from_iterable(samples), config=config, control_symbols=control_symbols
    )
    return Tokenizers(joint, joint)


def train_tokenizer(
    lines: Iterable[str], *, config: TokenizerConfig, control_symbols: Sequence[str] = ()
) -> Tokenizer:
    """Train one SentencePiece model; the same lines and config give the same bytes.

    `control_symbols` are pieces that have an id and that no text is split into. Raises DataError, saying the possible
    sizes, when the text cannot have a vocabulary of that size.
    """
    words = config.kind == "words"
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="word" if words else config.kind,
            vocab_size=config.vocab_size - 1,  # pad is ours
            byte_fallback=config.byte_fallback and not words,
            character_coverage=1.0 if words else config.character_coverage,
            normalization_rule_name="identity" if words else config.normalization,
            max_sentence_length=_NO_LENGTH_LIMIT,
            eos_id=EOS,
            unk_id=UNK,
            bos_id=-1,
            pad_id=-1,
            control_symbols=list(control_symbols),
            num_threads=_TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_explain(str(error), config.vocab_size)) from error
    return Tokenizer(model.getvalue())


def evenly_spaced(lines: Iterable[str], *, total: int, at_most: int) -> Iterator[str]:
    """Yield `lines` (there are `total`), thinned out evenly to `at_most`."""
    wanted = min(total, at_most)
    for index, line in enumerate(lines):
        if (index + 1) * wanted // total > index * wanted // total:
            yield line


def _explain(message: str, vocab_size: int) -> str:
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"a vocabulary of {vocab_size:,} is larger than the text supports: at most "
            f"{int(largest[1]) + 1:,}; lower tokenizer.vocab_size or give more text"
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {vocab_size:,} does not hold the characters of the text: at least "
            f"{int(smallest[1]) + 2:,}; raise tokenizer.vocab_size, "
            "or lower tokenizer.character_coverage"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "there is no text to train the tokenizer on; give at least one sentence"
    return f"SentencePiece could not train the tokenizer: {message}"
