"""Draw docs/images/family_tree.svg: which scheme grew out of which; `--check` only says whether it is up to date.

An edge is declared where its scheme is (`grew_out_of`). The picture is rectangles, lines and text alone, so that it is
the same file wherever it is drawn.
"""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from deepnet.schemes.catalogue import CHANGES, scheme_table

PICTURE = Path(__file__).parent / "images" / "family_tree.svg"
COLOURS = {
    "norm": "#cfe2f3",
    "scale": "#fce0b8",
    "init": "#d3ecd0",
    "schedule": "#f6d0d4",
    "stream": "#e2d6f0",
    "values": "#e6e6e6",
}
COLUMN, ROW, MARGIN = 160, 26, 8
BOX_WIDTH, BOX_HEIGHT = 140, 20


def family_tree() -> str:
    """Return the picture as SVG."""
    tree = Tree(scheme_table())
    width = MARGIN + COLUMN * (1 + max(map(tree.generation, tree.rows)))
    bottom = MARGIN + ROW * tree.num_lines
    parts = [edge for name in tree.rows for edge in _edges(tree, name)]
    parts += [_box(tree, name) for name in tree.rows]
    changed = {row["changes"] for row in tree.rows.values()}
    parts += _legend([change for change in CHANGES if change in changed], bottom)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 2 * ROW}" width="{width}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">'
    )
    frame = '<rect width="100%" height="100%" fill="white"/>'
    return (
        "\n".join([head, "<title>Family tree of the schemes</title>", frame, *parts, "</svg>"])
        + "\n"
    )


class Tree:
    """The schemes by name, each with a line of its own or half-way between those of its children."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = {row["name"]: row for row in rows}
        self.num_lines = 0
        self.line: dict[str, float] = {}
        for name in self.rows:
            if not self.parents(name):
                self._place(name)

    def parents(self, name: str) -> list[str]:
        """Return what a scheme grew out of, the one of the latest generation first: beside it the scheme stands."""
        return sorted(self.rows[name]["grew_out_of"], key=self.generation, reverse=True)

    @cache  # noqa: B019 - a tree lives as long as the script
    def generation(self, name: str) -> int:
        """Return the number of steps from the root, by the longest way."""
        return 1 + max(map(self.generation, self.rows[name]["grew_out_of"]), default=-1)

    def _place(self, name: str) -> None:
        children = [one for one in self.rows if self.parents(one)[:1] == [name]]
        for child in sorted(children, key=self._order):
            self._place(child)
        if children:
            placed = [self.line[child] for child in children]
            self.line[name] = (min(placed) + max(placed)) / 2
        else:
            self.line[name] = self.num_lines
            self.num_lines += 1

    def _order(self, name: str) -> tuple[int, int, str]:
        row = self.rows[name]
        return list(CHANGES).index(row["changes"]), year(row["source"]), name


def year(source: str) -> int:
    """Return the year of a source, from its arXiv number where it has one."""
    if number := re.search(r"arXiv (\d\d)\d\d\.\d{5}", source):
        return 2000 + int(number[1])
    return int(re.findall(r"\b(?:19|20)\d\d\b", source)[0])


def _corner(tree: Tree, name: str) -> tuple[float, float]:
    return MARGIN + COLUMN * tree.generation(name), MARGIN + ROW * tree.line[name]


def _edges(tree: Tree, name: str) -> list[str]:
    """Return a line from each parent: a full one from the first, from others a dashed one, between the boxes."""
    x, y = _corner(tree, name)
    middle, between = y + BOX_HEIGHT / 2, y - (ROW - BOX_HEIGHT) / 2
    lines = []
    for parent in tree.parents(name):
        left, top = _corner(tree, parent)
        start = f"M{left + BOX_WIDTH:g} {top + BOX_HEIGHT / 2:g}"
        if parent == tree.parents(name)[0]:
            way, style = f"H{x - 7:g}V{middle:g}H{x:g}", 'stroke="#555"'
        else:
            way = f"H{left + BOX_WIDTH + 6:g}V{between:g}H{x - 13:g}V{middle:g}H{x:g}"
            style = 'stroke="#777" stroke-dasharray="3 3"'
        lines.append(f'<path data-edge="{parent} {name}" d="{start}{way}" fill="none" {style}/>')
    return lines


def _box(tree: Tree, name: str) -> str:
    row, (x, y) = tree.rows[name], _corner(tree, name)
    text = y + BOX_HEIGHT - 6
    return (
        f'<g><rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="3" '
        f'fill="{COLOURS[row["changes"]]}" stroke="#555" stroke-width="0.5"/>'
        f'<text x="{x + 4:g}" y="{text:g}">{name}</text>'
        f'<text x="{x + BOX_WIDTH - 4:g}" y="{text:g}" font-size="8" fill="#444" text-anchor="end">'
        f"{year(row['source'])}</text></g>"
    )


def _legend(changes: list[str], top: float) -> list[str]:
    """Return what the colours and lines mean, below the tree."""
    parts, y = [], top + ROW / 2
    for place, change in enumerate(changes):
        x = MARGIN + 90 * place
        parts.append(
            f'<rect x="{x}" y="{y:g}" width="12" height="12" fill="{COLOURS[change]}" stroke="#555" '
            f'stroke-width="0.5"/><text x="{x + 17}" y="{y + 10:g}">{change}</text>'
        )
    said = "A line leads from a scheme to what grew out of it, a dashed one where that has other parents too."
    parts.append(f'<text x="{MARGIN}" y="{y + 30:g}" fill="#444">{said}</text>')
    return parts


def is_up_to_date(path: Path = PICTURE) -> bool:
    """Return whether the picture is what would be drawn."""
    return path.exists() and path.read_text(encoding="utf-8") == family_tree()


def main() -> None:
    """Write the picture, or with --check exit with 1 where it is out of date."""
    if "--check" not in sys.argv:
        PICTURE.write_text(family_tree(), encoding="utf-8")
    elif not is_up_to_date():
        sys.exit(f"out of date: {PICTURE.name}; run: make docs")


if __name__ == "__main__":
    main()
