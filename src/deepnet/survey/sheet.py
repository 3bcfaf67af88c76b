"""All that is known of one scheme, on one sheet."""

from typing import Any

from deepnet.schemes.catalogue import list_schemes, load_scheme, scheme_class
from deepnet.survey.costs import cost_beside_post_ln
from deepnet.survey.docstrings import list_options, read_docstring
from deepnet.survey.evidence import evidence_setting, read_evidence
from deepnet.survey.refusals import refused_options
from deepnet.survey.table import catalogue_row

BESIDE = "post_ln"
"""The scheme whose measurements stand beside those of all others."""


def scheme_sheet(name: str) -> dict[str, Any]:
    """Return everything about a scheme of the catalogue, or about one of your own, "module:Class".

    Beside its row of `scheme_catalogue`: what is written in its file, led_to, restriction, warmup, options, refused
    (options and message), cost (over post_ln's) and evidence of ours. Raises ConfigError for an unknown name.
    """
    kind, row = scheme_class(name), catalogue_row(name)
    refused = refused_options(name).items()
    return {
        **row,
        "written": read_docstring(kind),
        "led_to": led_to(name),
        "restriction": kind.restriction,
        "warmup": kind.warmup,
        "options": list_options(kind),
        "refused": [{"options": options, "message": message} for message, options in refused],
        "cost": cost_beside_post_ln(load_scheme(name), row["architectures"][0]),
        "evidence": {
            "rows": read_evidence(name),
            "beside": read_evidence(BESIDE) if name != BESIDE else [],
            **evidence_setting(),
        },
    }


def led_to(name: str) -> list[str]:
    """Return the schemes of the catalogue that grew out of one."""
    return [one for one in list_schemes() if name in scheme_class(one).grew_out_of]
