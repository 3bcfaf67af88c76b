"""The training part while it is prepared: cleaned text in files, beside it keys of its rows and the part of each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from pathlib import Path

import numpy as np

from deepnet.data.cleaning import CleanedBlock, Cleaning, CleaningCounts
from deepnet.data.encoding import EncodedRows, SpanEncoder, SplitSpan
from deepnet.data.keys import ROW_NUMBERS
from deepnet.data.sorting import find_repeats, read_records
from deepnet.data.split import LEFT_OUT, TRAIN, Parts, split_by_hash
from deepnet.data.text import Span, read_blocks
from deepnet.data.tokenizer import Tokenizers
from deepnet.data.workers import Workers


@dataclass(frozen=True)
class TrainText:
    """Rows in the order of the files they come from; what grows with their number is on disk."""

    folder: Path
    sides: Sequence[str]
    """What a row's sentences are called."""
    spans: list[Span] = field(default_factory=list)
    counts: CleaningCounts = field(default_factory=CleaningCounts)

    @property
    def files(self) -> tuple[Path, ...]:
        """The cleaned sentences of each side, one per line."""
        return tuple(self.folder / f"{side}.text" for side in self.sides)

    @cached_property
    def parts(self) -> Parts:
        """Of each row what it belongs to: `split.TRAIN`, at first, a part split off, or nothing (`split.LEFT_OUT`)."""
        rows = sum(span.rows for span in self.spans)
        parts: Parts = np.memmap(self.folder / "parts", np.int8, "w+", shape=(rows,))
        parts[:] = TRAIN
        return parts

    def clean(self, cleaning: Cleaning, workers: Workers) -> None:
        """Write down what is fit of the files that are to be cleaned, which are read once; count the rest.

        Raises DataError where a file cannot be read.
        """
        with ExitStack() as stack:
            paths = (*self.files, self._row_keys, self._sentence_keys)
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for block in workers.map(cleaning, read_blocks(cleaning.paths)):
                self._note_span(block)
                self.counts.add(block.counts)
                keys = (block.rows.tobytes(), block.sentences.tobytes())
                for file, content in zip(files, (*block.sides, *keys), strict=True):
                    file.write(content)
        if cleaning.config.drop_duplicates:
            self._leave_out_repeats()

    def split_off(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Take parts (name -> rows wanted) out of the rows to train on; return the rows of each.

        Raises DataError where that is not possible.
        """
        return split_by_hash(self._sentence_keys, self.parts, wanted=wanted, sides=self.sides)

    def sentences(self, side: int) -> Iterator[str]:
        """Yield the sentences of one side that are to be trained on; reads its file."""
        for span in self.spans:
            chosen = (self._parts_of(span) == TRAIN).tolist()
            yield from compress(span.read(self.files[side], side), chosen)

    def encode(
        self,
        tokenizers: Tokenizers,
        *,
        max_length: int,
        held_out: Sequence[Sequence[Path]],
        workers: Workers,
    ) -> Iterator[EncodedRows]:
        """Yield the rows to train on as ids, and write those split off as text; reads the files once.

        `held_out` are the files of each part that was split off, one per side.
        """
        encoder = SpanEncoder(self.files, tokenizers, max_length)
        tasks = (SplitSpan(span, self._parts_of(span)) for span in self.spans)
        with ExitStack() as stack:
            parts = [[stack.enter_context(open(path, "wb")) for path in part] for part in held_out]
            for encoded in workers.map(encoder, tasks):
                for part, sides in encoded.held_out.items():
                    for file, text in zip(parts[part], sides, strict=True):
                        file.write(text)
                yield encoded.train

    @property
    def _row_keys(self) -> Path:
        return self.folder / "rows.keys"

    @property
    def _sentence_keys(self) -> Path:
        return self.folder / "sentences.keys"

    def _note_span(self, block: CleanedBlock) -> None:
        sizes = tuple(map(len, block.sides))
        last = self.spans[-1] if self.spans else Span(0, 0, (0,) * len(sizes), (0,) * len(sizes))
        starts = tuple(start + size for start, size in zip(last.starts, last.sizes, strict=True))
        self.spans.append(Span(last.first + last.rows, block.counts.kept, starts, sizes))

    def _leave_out_repeats(self) -> None:
        read = partial(read_records, self._row_keys, width=ROW_NUMBERS)
        total = self.counts.kept
        for rows in find_repeats(read, total=total, work=self.folder / "buckets"):
            self.parts[rows] = LEFT_OUT
            self.counts.kept -= len(rows)
        if number := total - self.counts.kept:
            self.counts.dropped["duplicate"] += number

    def _parts_of(self, span: Span) -> Parts:
        return np.array(self.parts[span.first : span.first + span.rows])
