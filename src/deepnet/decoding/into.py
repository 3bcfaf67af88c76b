"""Into which language a model of several translates: what stands in front of a source, and where an output starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.bundle import Bundle
from deepnet.data.directions import language_tag
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


def into(bundles: Sequence[Bundle], to: str) -> Into:
    """Return what asks these models for the language `to`, "" for the only one they have.

    Raises ConfigError where a model of several languages is not told which, where one of one direction is, where `to`
    is none of its languages, and where the models of an ensemble differ in this.
    """
    known = bundles[0].config.languages or {}
    for bundle in bundles[1:]:
        if _ways(bundle.config.languages or {}) != _ways(known):
            raise ConfigError(
                f"{bundle.path} and {bundles[0].path} translate other languages, or place their tags elsewhere; an "
                "ensemble needs models of the same"
            )
    if "directions" not in known:
        _refuse_one_direction(bundles[0], known, to)
        return KNOWN
    targets = target_languages(known)
    if to not in targets:
        raise ConfigError(_which(bundles[0], targets, to))
    return _asking(bundles[0], to, str(known.get("tag")))


def target_languages(languages: dict[str, Any]) -> list[str]:
    """Return the languages that a bundle of several translates into, in alphabetical order."""
    return sorted({str(target) for _, target in languages["directions"]})


def _ways(languages: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the models of an ensemble must agree on."""
    if "directions" not in languages:
        return ()
    return (languages.get("tag"), *target_languages(languages))


def _refuse_one_direction(bundle: Bundle, known: dict[str, Any], to: str) -> None:
    if to:
        only = known.get("target", "one language")
        raise ConfigError(
            f"{bundle.path} translates into {only} alone, so there is no choice of '{to}'; leave out --to"
        )


def _which(bundle: Bundle, targets: Sequence[str], to: str) -> str:
    if not to:
        return f"{bundle.path} translates into {', '.join(targets)}; say which: --to {targets[0]}"
    hint = suggest(to, targets) or f"; it has {', '.join(targets)}"
    return f"{bundle.path} does not translate into '{to}'{hint}"


def _asking(bundle: Bundle, to: str, placement: str) -> Into:
    assert bundle.tokenizers is not None, "checked before"
    tag = bundle.tokenizers.source.find_piece(language_tag(to))
    if tag is None or placement not in ("source", "target", "both"):
        raise CheckpointError(
            f"{bundle.path} is damaged: its tokenizer has no {language_tag(to)}, or its tag is placed at "
            f"'{placement}'; copy it again"
        )
    return Into(
        source=(tag,) if placement != "target" else (),
        start=tag if placement != "source" else None,
    )
