"""Write into docs/audit.md what the audit finds of wrong models and of right ones, each small and built here.

python docs/audit_matrix.py [--check]

The wrong ones have one published or planted mistake each. The right ones are every scheme in every tying, with biases
and without, for its optimisers, in three writings each; all of `tests/unit/audit/writings.py` come round.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

import deepnet

PAGE = Path(__file__).parent / "audit.md"
TABLES = Path(__file__).parents[1] / "tests" / "unit" / "audit"
sys.path.insert(0, str(TABLES))

import defects  # noqa: E402
import right_models  # noqa: E402
import writings  # noqa: E402

BEGIN, END = "<!-- {}: written by docs/audit_matrix.py -->", "<!-- end of {} -->"


def matrix() -> str:
    """Return a row per mistake: where it was published, whether it was found and by what finding."""
    rows = [
        "| package | mistake | claimed | with the claim | no claim | finding |",
        "|---|---|---|---|---|---|",
    ]
    for defect in defects.DEFECTS:
        torch.manual_seed(1)
        model, inputs = defect.build(defect.shape), defects.inputs(defect.shape)
        found = deepnet.audit(model, inputs, claims=defect.claims).findings
        found = [
            one for one in found if one.where.startswith(defect.where) and defect.says in one.what
        ]
        unclaimed = deepnet.audit(model, inputs).findings
        said = f"{found[0].where}: {found[0].what}" if found else ""
        cells = (
            defect.package,
            defect.mistake,
            defect.claims,
            "detected" if found else "missed",
            "detected" if unclaimed else "missed",
            said,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, _passed()])


def _passed() -> str:
    """Return the row of the model without a mistake."""
    torch.manual_seed(1)
    shape = defects.Shape(6, 6)
    model, inputs = defects.correct(shape), defects.inputs(shape)
    counts = [len(deepnet.audit(model, inputs, claims=c).findings) for c in ("deepnorm", None)]
    return f"| none | none: the same model, correct | deepnorm | {counts[0]} findings | {counts[1]} findings | |"


def right() -> str:
    """Return a row per scheme and family: how many right models were audited, in which writings, and what was found."""
    rows = [
        "| scheme | optimiser | tyings | biases | writings | models | findings | notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*rows, *map(_right_row, right_models.schemes())])


def _right_row(scheme: right_models.Right) -> str:
    audited = list(_audited(scheme))
    models = [one for one, _ in audited]
    options = " ".join(f"{key}={value}" for key, value in scheme.options.items())
    cells = (
        f"{scheme.scheme} {options}".strip(),
        scheme.family,
        ", ".join(dict.fromkeys(one.tying for one in models)),
        "/".join("with" if biases else "without" for biases in {one.biases: 0 for one in models}),
        str(len({one.writing for one in models})),
        str(len(models)),
        _findings([report for _, report in audited]),
        str(sum(bool(report.notes) for _, report in audited)),
    )
    return f"| {' | '.join(cells)} |"


def _findings(reports: list[deepnet.audit.AuditReport]) -> str:
    if not any(report.sites for report in reports):
        return "not located"
    return str(sum(len(report.findings) for report in reports))


def _audited(
    scheme: right_models.Right,
) -> Iterator[tuple[right_models.Right, deepnet.audit.AuditReport]]:
    """Yield three writings for each tying, with biases and without, each with its audit; all writings come round."""
    turn = 0
    for tying, biases in product(right_models.TYINGS, (True, False)):
        models = [
            replace(scheme, tying=tying, biases=biases, writing=writing)
            for writing in writings.WRITINGS
        ]
        there = [one for one in models if one.model() is not None]
        for one in [there[(turn + k) % len(there)] for k in range(3)] if there else ():
            report = one.audit()
            assert report is not None
            yield one, report
        turn += 3


def page() -> str:
    """Return docs/audit.md with both tables as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("matrix", matrix), ("right models", right)):
        before, _, rest = text.partition(BEGIN.format(name))
        _, _, after = rest.partition(END.format(name))
        text = f"{before}{BEGIN.format(name)}\n\n{table()}\n\n{END.format(name)}{after}"
    return text


if __name__ == "__main__":
    new = page()
    if "--check" in sys.argv[1:]:
        sys.exit(new != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(new, encoding="utf-8")
