"""Where trouble was: "encoder.3.ffn.fc1" of an incident, taken apart and said in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepnet.report.wording import STACKS, site_label


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """The place that an incident names; what it does not name is None or empty."""

    text: str = ""
    """As the incident says it: a place such as "encoder.3.ffn.fc1", or a parameter of a foreign model."""
    path: str = ""
    """The module in the model, where it is recorded."""
    stack: str | None = None
    layer: int | None = None
    """From 1, the layer nearest to the input."""
    site: str = ""
    role: str = ""

    @property
    def words(self) -> str:
        """The place as a reader says it, "" for none."""
        if self.stack is None or self.layer is None:
            return self.text
        inside = ".".join(filter(None, (self.stack, self.site, self.role)))
        within = f", {site_label(inside)}" if self.site else ""
        return f"{self.stack} layer {self.layer:,}{within}"


def blamed_of(where: object, place: object = None) -> Blamed:
    """Return the place of an incident from its text, and from its fields where it has them."""
    text = where if isinstance(where, str) else ""
    found = _from_text(text)
    return _from_fields(place, found) if isinstance(place, Mapping) else found


def _from_text(text: str) -> Blamed:
    stack, *parts = text.split(".")
    if stack not in STACKS or not parts or not parts[0].isdecimal():
        return Blamed(text=text)
    site, role = ([*parts[1:], "", ""])[:2]
    return Blamed(text=text, stack=stack, layer=int(parts[0]), site=site, role=role)


def _from_fields(fields: Mapping[str, Any], found: Blamed) -> Blamed:
    layer = fields.get("layer", found.layer)
    keys = ("path", "stack", "site", "role")
    said = {key: text for key in keys if isinstance(text := fields.get(key), str)}
    return Blamed(
        text=found.text or said.get("path", ""),
        path=said.get("path", ""),
        stack=said.get("stack", found.stack),
        layer=layer if type(layer) is int else None,
        site=said.get("site", found.site),
        role=said.get("role", found.role),
    )
