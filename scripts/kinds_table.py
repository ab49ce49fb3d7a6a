"""Write the table of kinds in docs/findings.md from their rows.

PYTHONPATH=. python scripts/kinds_table.py
"""

from pathlib import Path

from alerts.kind import Kind
from alerts.kinds import KINDS

PAGE = Path(__file__).resolve().parents[1] / "docs/findings.md"
HEAD = "| kind | means | severity | action |\n|---|---|---|---|\n"


def page(text: str) -> str:
    """Return the page with its table of kinds written anew."""
    before, _, rest = text.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{HEAD}{''.join(rows())}\n{after}"


def rows() -> list[str]:
    """Return a line for every kind that a finding may have; ``x.*`` is a family that is a kind itself.

    Each is linked to its section in ``docs/runbooks.md``, under the anchor that GitHub gives to its heading.
    """
    return [_row(name, kind) for name, kind in KINDS.items() if kind.reported_as == "finding"]


def _row(name: str, kind: Kind) -> str:
    shown = name if "." in name else f"{name}.*"
    link = f"[`{shown}`](runbooks.md#{name.replace('.', '')})"
    return f"| {link} | {kind.meaning} | {kind.severity} | `{kind.action}` |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
