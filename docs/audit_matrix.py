"""Write into docs/audit.md the matrix of published mistakes, each audited on a small model that has it.

python docs/audit_matrix.py [--check]
"""

import sys
from pathlib import Path

import torch

import deepnet

PAGE = Path(__file__).parent / "audit.md"
TABLES = Path(__file__).parents[1] / "tests" / "unit" / "audit"
BEGIN, END = "<!-- matrix: written by docs/audit_matrix.py -->", "<!-- end of matrix -->"


def matrix() -> str:
    """Return a row per mistake: where it was published, whether it was found and by what finding."""
    sys.path.insert(0, str(TABLES))
    import defects  # noqa: PLC0415

    rows = [
        "| package | mistake | claimed deepnorm | no claim | finding |",
        "|---|---|---|---|---|",
    ]
    for defect in defects.DEFECTS:
        torch.manual_seed(1)
        model, inputs = defect.build(defect.shape), defects.inputs(defect.shape)
        found = deepnet.audit(model, inputs, claims="deepnorm").findings
        found = [
            one for one in found if one.where.startswith(defect.where) and defect.says in one.what
        ]
        unclaimed = deepnet.audit(model, inputs).findings
        said = f"{found[0].where}: {found[0].what}" if found else ""
        cells = (
            defect.package,
            defect.mistake,
            "detected" if found else "missed",
            "detected" if unclaimed else "missed",
            said,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, _passed(defects)])


def _passed(defects) -> str:
    """Return the row of the model without a mistake."""
    torch.manual_seed(1)
    shape = defects.Shape(6, 6)
    model, inputs = defects.correct(shape), defects.inputs(shape)
    counts = [len(deepnet.audit(model, inputs, claims=c).findings) for c in ("deepnorm", None)]
    return (
        f"| none | none: the same model, correct | {counts[0]} findings | {counts[1]} findings | |"
    )


def page() -> str:
    """Return docs/audit.md with the matrix as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{matrix()}\n\n{END}{after}"


if __name__ == "__main__":
    new = page()
    if "--check" in sys.argv[1:]:
        sys.exit(new != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(new, encoding="utf-8")
