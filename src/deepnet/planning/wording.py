"""Numbers of bytes and operations as people read them."""

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSANDS = ("", "k", "M", "G", "T")


def in_bytes(size: float) -> str:
    """Return a size in the largest unit of which there is one, such as "1.2 GiB"."""
    return _scaled(size, _BYTES, 1024)


def in_thousands(count: float) -> str:
    """Return a count of FLOPs or the like, such as "4.5 G"."""
    return _scaled(count, _THOUSANDS, 1000)


def _scaled(value: float, units: tuple[str, ...], step: int) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:  # more would be shown with an exponent
        value, power = value / step, power + 1
    return f"{value:.3g} {units[power]}".rstrip()
