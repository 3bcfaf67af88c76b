"""What the command writes: tables and messages for people, JSON for machines, lines for pipes."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_PLAIN_WIDTH = 10_000  # columns where there is no terminal: no line is ever folded


class Output:
    """Where one command writes; with `as_json` messages go to standard error and `result` is JSON.

    Of the processes that torchrun starts only the first writes.
    """

    def __init__(self, *, as_json: bool) -> None:
        from rich.console import Console

        self.as_json = as_json
        self.is_writer = os.environ.get("RANK", "0") == "0"
        stream = sys.stderr if as_json else sys.stdout
        self.console = Console(
            file=stream,
            width=None if stream.isatty() else _PLAIN_WIDTH,
            markup=False,
            highlight=False,
            emoji=False,
            quiet=not self.is_writer,
        )

    def say(self, message: str = "") -> None:
        """Show a message."""
        self.console.print(message, soft_wrap=True)

    def heading(self, text: str) -> None:
        """Show what the lines below are about, bold on a terminal."""
        self.console.print(text, style="bold", soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Show a table: ruled on a terminal, columns of plain text elsewhere; numbers stand to the right."""
        from rich import box
        from rich.table import Table

        rows = [list(row) for row in rows]
        style = box.SIMPLE_HEAD if self.console.is_terminal else None
        table = Table(box=style, pad_edge=False, header_style="bold")
        for index, name in enumerate(columns):
            numeric = any(isinstance(row[index], int | float) for row in rows)
            table.add_column(
                name,
                justify="right" if numeric else "left",
                overflow="fold",
                no_wrap=index == 0,  # what a row is called is there to be copied
            )
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console.print(table)

    def result(self, data: object, *, show: Callable[[], None]) -> None:
        """Write the result of the command: as JSON, or as `show` does."""
        if self.as_json and self.is_writer:
            write_line(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
        elif self.is_writer:
            show()


def write_line(text: str) -> None:
    """Write one line to standard output at once, as UTF-8 whatever the locale is."""
    write_bytes(f"{text}\n".encode())


def write_bytes(content: bytes) -> None:
    """Write to standard output at once, exactly as it is."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def write_json_line(data: Any) -> None:
    """Write one JSON object on one line, at once."""
    write_line(json.dumps(data, ensure_ascii=False, allow_nan=False))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
