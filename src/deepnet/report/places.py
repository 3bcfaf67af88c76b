"""Where trouble was: "encoder.3.ffn.fc1" of an incident, taken apart and said in words."""

from dataclasses import dataclass

from deepnet.report.wording import STACKS, site_label


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """The place that an incident names; what it does not name is None or empty."""

    text: str = ""
    """As the incident says it: a place such as "encoder.3.ffn.fc1", or a parameter of a foreign model."""
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


def blamed_of(where: object) -> Blamed:
    """Return the place of an incident, taken apart where it is one of a layer."""
    text = where if isinstance(where, str) else ""
    stack, *parts = text.split(".")
    if stack not in STACKS or not parts or not parts[0].isdecimal():
        return Blamed(text=text)
    site, role = ([*parts[1:], "", ""])[:2]
    return Blamed(text=text, stack=stack, layer=int(parts[0]), site=site, role=role)
