"""Whether one file of translations is better than another, in the tokenisation that their runs were scored in."""

import json
from collections.abc import Sequence
from pathlib import Path

from deepnet.data.text import read_lines
from deepnet.errors import ConfigError
from deepnet.evaluation.significance import Comparison, paired_bootstrap
from deepnet.evaluation.tokenization import recorded_tokenization


def compare_files(
    baseline: Path,
    system: Path,
    reference: Path,
    *,
    tokenization: str | None = None,
    num_samples: int = 1000,
) -> list[Comparison]:
    """Return the comparison of two outputs in BLEU and in chrF.

    `tokenization` is BLEU's; unset, it is that of the scores beside the outputs, else the script of the references
    decides. Raises ConfigError where the two outputs were scored in different ones.
    """
    texts = [list(read_lines(path)) for path in (baseline, system, reference)]
    tokenization = tokenization or _shared_tokenization((baseline, system))
    return paired_bootstrap(*texts, tokenization=tokenization, num_samples=num_samples)


def _shared_tokenization(outputs: Sequence[Path]) -> str | None:
    """Return the tokenisation that the outputs' runs were scored in, None where none of them says."""
    found = {path: name for path in outputs if (name := _scored_in(path))}
    if len(set(found.values())) > 1:
        said = " and ".join(f"{path} in {name}" for path, name in found.items())
        raise ConfigError(
            f"BLEU was computed in different tokenisations: {said}; say in which one to compare them, such as "
            f"--bleu-tokenization {next(iter(found.values()))}"
        )
    return next(iter(found.values()), None)


def _scored_in(output: Path) -> str:
    """Return what the scores beside a run's translations say of their BLEU's tokenisation, "" for nothing."""
    try:
        scores = json.loads(output.with_name("test.scores.json").read_text("utf-8"))
        return recorded_tokenization(str(scores["signature"]["bleu"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
