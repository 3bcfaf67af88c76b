"""Numbers of bytes and operations as people read and write them."""

import re

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSANDS = ("", "k", "M", "G", "T")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kKMGT]?)(i?)B")


def in_bytes(size: float) -> str:
    """Return a size in the largest unit of which there is one, such as "1.2 GiB"."""
    return _scaled(size, _BYTES, 1024)


def in_thousands(count: float) -> str:
    """Return a count of FLOPs or the like, such as "4.5 G"."""
    return _scaled(count, _THOUSANDS, 1000)


def to_bytes(size: str) -> int:
    """Return the bytes of a size such as "8GB" (10^9 bytes each) or "512 MiB" (2^20); raises ValueError."""
    found = _SIZE.fullmatch(size.strip())
    if not found or (found[3] and not found[2]) or not float(found[1]):
        raise ValueError(
            "expected a number above 0 and a unit, such as '8GB' (10^9 bytes each) or '512MiB' (2^20)"
        )
    power = _THOUSANDS.index(found[2].replace("K", "k"))
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def _scaled(value: float, units: tuple[str, ...], step: int) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:  # more would be shown with an exponent
        value, power = value / step, power + 1
    return f"{value:.3g} {units[power]}".rstrip()
