"""Write the table of metrics in docs/records.md from the schema.

PYTHONPATH=. python scripts/metrics_table.py
"""

from pathlib import Path

from slowrank.telemetry.schema import GPU_COLUMNS, HOST_COLUMNS, NIC_COLUMNS

PAGE = Path(__file__).resolve().parents[1] / "docs/records.md"
HEAD = "| metric | unit | kind |\n|---|---|---|\n"


def page(text: str) -> str:
    """Return the page with its table of metrics written anew."""
    before, _, rest = text.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{HEAD}{''.join(rows())}\n{after}"


def rows() -> list[str]:
    """Return a line for every metric that a sample may have."""
    columns = (*GPU_COLUMNS, *NIC_COLUMNS, *HOST_COLUMNS)
    return [f"| `{column.name}` | {column.unit} | {column.kind} |\n" for column in columns]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
