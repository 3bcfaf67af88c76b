"""The display of a run: a live line on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


class ProgressDisplay:
    """A sink of the loop's records; on a terminal the latest training line stays at the bottom and is replaced."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Show one record; a validation leaves a line that stays."""
        line = Text(format_record(record), no_wrap=True, overflow="ellipsis")
        if self._live.is_started and not has_validation(record):
            self._live.update(line, refresh=True)
        else:
            self._console.print(line, soft_wrap=True)


def has_validation(record: Mapping[str, Any]) -> bool:
    """Return whether a record of metrics.jsonl holds figures of a validation."""
    return any(name.startswith("validation_") for name in record)


def format_record(record: Mapping[str, Any]) -> str:
    """Return a record as one line: loss, learning rate, gradient norm, speed, time left, validation, if it has them."""
    parts = [f"step {record['step']:>6,}", f"epoch {record['epoch']}"]
    if "loss" in record:
        loss = "none" if record["loss"] is None else f"{record['loss']:.4f}"
        parts += [f"loss {loss}", f"lr {record['lr']:.2e}"]
        if record["gradient_norm"] is not None:
            parts.append(f"gradient norm {record['gradient_norm']:.3f}")
        if record["tokens_per_second"] is not None:
            parts.append(f"{record['tokens_per_second']:,.0f} target tokens/s")
        if record["skipped_updates"]:
            parts.append(f"{record['skipped_updates']} updates skipped")
        left = seconds_left(seconds=record["seconds"], progress=record["progress"])
        parts += [f"{format_seconds(left)} left"] if left else []
    for name, value in record.items():
        if name.startswith("validation_"):
            parts.append(f"{name.replace('_', ' ')} {value:.4g}")
    return "  ".join(parts)


def format_incident(record: Mapping[str, Any]) -> str:
    """Return an incident as one line: what, where, and what is done about it."""
    where = f" in {record['where']}" if record["where"] else ""
    back = "" if record["back_to"] is None else f" to step {record['back_to']:,}"
    done = record["action"].replace("_", " ")
    return f"step {record['step']:,}: {record['kind']}{where}: {record['message']} [{done}{back}]"


def seconds_left(*, seconds: float, progress: float) -> float | None:
    """Return the seconds until the end if the run goes on at its mean speed; None before there is any progress."""
    return seconds * (1 - progress) / progress if progress else None


def format_seconds(seconds: float) -> str:
    """Return a duration as h:mm:ss, or m:ss below an hour."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
