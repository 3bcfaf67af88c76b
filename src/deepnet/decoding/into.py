"""Into which language a model of several translates: what stands in front of a source, and where an output starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.bundle import Bundle
from deepnet.config import Section, build
from deepnet.data.directions import TagPlacement, language_tag
from deepnet.errors import CheckpointError, ConfigError, suggest


@dataclass(frozen=True)
class Into:
    """What asks a model for a language; nothing of one that knows one direction."""

    source: tuple[int, ...] = ()
    """The ids in front of every source."""
    start: int | None = None
    """What the decoder starts from, where it is not what the model itself starts from."""


KNOWN = Into()
"""What a model is asked that knows one direction."""


class ManyLanguages(Section):
    """What the bundle of a model of many directions says of them."""

    directions: tuple[tuple[str, str], ...]
    """Source and target language of each that was trained."""
    zero_shot: tuple[tuple[str, str], ...] = ()
    """Of those that were tested besides."""
    tag: TagPlacement
    """Where the tag of the target language stands."""

    @property
    def targets(self) -> list[str]:
        """The languages that it translates into, in alphabetical order."""
        return sorted({target for _, target in self.directions})


def into(bundles: Sequence[Bundle], to: str) -> Into:
    """Return what asks these models for the language `to`, "" for the only one they have.

    Raises ConfigError where a model of several languages is not told which, where one of one direction is, where `to`
    is none of its languages, and where the models of an ensemble differ in this; CheckpointError where a bundle's
    record of its languages cannot be used.
    """
    first, *others = bundles
    known = many_languages(first)
    for bundle in others:
        if _ways(many_languages(bundle)) != _ways(known):
            raise ConfigError(
                f"{bundle.path} and {first.path} translate other languages, or place their tags elsewhere; an "
                "ensemble needs models of the same"
            )
    if known is None:
        if to:
            only = (first.config.languages or {}).get("target", "one language")
            raise ConfigError(
                f"{first.path} translates into {only} alone, so there is no choice of '{to}'; leave out --to"
            )
        return KNOWN
    if to not in known.targets:
        raise ConfigError(_which(first, known.targets, to))
    return _asking(first, to, known.tag)


def many_languages(bundle: Bundle) -> ManyLanguages | None:
    """Return what a bundle says of its directions, None where it has one; raises CheckpointError as `into` does."""
    said = bundle.config.languages or {}
    if "directions" not in said:
        return None
    try:
        return build(ManyLanguages, said, where="languages")
    except ConfigError as error:
        raise CheckpointError(f"{bundle.path}: {'; '.join(str(error).splitlines())}") from error


def _ways(known: ManyLanguages | None) -> tuple[Any, ...]:
    """Return what the models of an ensemble must agree on."""
    return () if known is None else (known.tag, *known.targets)


def _which(bundle: Bundle, targets: Sequence[str], to: str) -> str:
    if not to:
        return f"{bundle.path} translates into {', '.join(targets)}; say which: --to {targets[0]}"
    hint = suggest(to, targets) or f"; it has {', '.join(targets)}"
    return f"{bundle.path} does not translate into '{to}'{hint}"


def _asking(bundle: Bundle, to: str, placement: TagPlacement) -> Into:
    assert bundle.tokenizers is not None, "checked before"
    tag = bundle.tokenizers.source.find_piece(language_tag(to))
    if tag is None:
        raise CheckpointError(
            f"{bundle.path}: its tokenizer has no {language_tag(to)}, though its languages have '{to}'; copy it again"
        )
    return Into(
        source=(tag,) if placement != "target" else (),
        start=tag if placement != "source" else None,
    )
