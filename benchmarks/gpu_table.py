"""The page that shows what the cells of gpu.py came to."""

from collections.abc import Sequence
from typing import Any

from table import interval, table
from training import OURS

PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
}
"""Dense bf16 operations per second by a part of the card's name, the longer part first (NVIDIA's data sheets)."""
INTRO = """# Training on one card

`{command}`. {where}.

A cell is a process of its own; tokens count both sides without padding, a row is the median of its rounds with the
lowest and highest in brackets. "Ours / it" compares medians of the same run and the same way: eager, every layer
compiled by itself, or the whole model compiled; "ours_deepnorm (again)" shows what is noise. MFU is the model's own
operations (PaLM's count) over what the card can do in bf16{unknown}. Memory is the most that the tensors took at once,
on a CPU what the process took. Warm-up is what the first three steps took beyond three later ones: compiling, where
anything is.
"""
NO_MEASUREMENT = "**This checks that the script runs; nothing here is a measurement.** "
HEADER = ["model", "way", "parameters", "tokens/s", "ours / it", "peak GB", "MFU", "warm-up s"]


def page(results: Sequence[dict[str, Any]], *, command: str, tests: str) -> str:
    """The whole page, in Markdown: what was run where, then one table per size, then warm-up against depth."""
    if not results:
        return "No cell has run.\n"
    first = results[0]
    card = next((row["card"] for row in results if row.get("card")), "")
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    where = f"{card or first['host']}; {first['date']}, commit {first['commit']}; {versions}"
    unknown = (
        "" if peak_flops(card) else f", which is not known of {card or 'a CPU'}, so it is left out"
    )
    intro = INTRO.format(command=command, where=where, unknown=unknown)
    if not card:
        intro = intro.replace("\n\n", f"\n\n{NO_MEASUREMENT}", 1)
    parts = [intro, f"`tests/gpu`: {tests}\n"]
    sizes = list(dict.fromkeys(row["size"] for row in results))
    parts += [f"## {size}\n\n{one_size(results, size, card)}\n" for size in sizes]
    return "\n".join([*parts, f"## Warm-up against depth\n\n{warm_up(results, sizes)}\n"])


def peak_flops(card: str) -> float | None:
    """What a card can do, None where it is not known."""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in card), None)


def one_size(results: Sequence[dict[str, Any]], size: str, card: str) -> str:
    rows = [row for row in results if row["size"] == size]
    ours = {row["compiled"]: speed(row) for row in rows if row["model"] == OURS}
    lines = [cells(row, ours.get(row["compiled"]), peak_flops(card)) for row in rows]
    return table(HEADER, sorted(lines))


def cells(row: dict[str, Any], ours: float | None, peak: float | None) -> list[str]:
    if "failed" in row:
        return [row["model"], row["compiled"], "", row["failed"], "", "", "", ""]
    return [
        row["model"],
        row["compiled"],
        f"{row['parameters']:,}",
        interval(row["tokens_per_second"], 0),
        f"{ours / speed(row):.3f}" if ours else "",
        f"{row['peak_bytes'] / 1e9:.2f}",
        f"{row['flops_per_second'] / peak:.1%}" if peak else "",
        f"{row['warm_up_seconds']:.1f}",
    ]


def speed(row: dict[str, Any]) -> float | None:
    """The median tokens per second, None where the cell failed."""
    return None if "failed" in row else row["tokens_per_second"]["median"]


def warm_up(results: Sequence[dict[str, Any]], sizes: Sequence[str]) -> str:
    """Seconds by model and size where every layer is compiled by itself."""
    found = {
        (row["model"], row["size"]): f"{row['warm_up_seconds']:.1f}"
        for row in results
        if row["compiled"] == "layers" and "failed" not in row
    }
    models = list(dict.fromkeys(model for model, _ in found))
    rows = [[model, *(found.get((model, size), "") for size in sizes)] for model in models]
    return table(["every layer compiled by itself", *sizes], rows)
