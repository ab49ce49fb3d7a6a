"""Write the table of metric names in docs/existing-telemetry.md from the mapping.

PYTHONPATH=. python scripts/foreign_table.py
"""

from pathlib import Path

from slowrank.foreign.rules import DCGM, NODE_EXPORTER, OTEL, RULES, Rule

PAGE = Path(__file__).resolve().parents[1] / "docs/existing-telemetry.md"
HEAD = "| column | dcgm-exporter | node_exporter | OpenTelemetry |\n|---|---|---|---|\n"


def page(text: str) -> str:
    """Return the page with its table written anew."""
    before, _, rest = text.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{HEAD}{''.join(rows())}\n{after}"


def rows() -> list[str]:
    """Return a line for every column with the metrics that fill it, and the labels that they must have."""
    columns = dict.fromkeys(_column(rule) for rules in RULES.values() for rule in rules)
    return [
        f"| {column} | {' | '.join(_names(table, column) for table in (DCGM, NODE_EXPORTER, OTEL))} |\n"
        for column in sorted(columns)
    ]


def _names(table: dict[str, tuple[Rule, ...]], column: str) -> str:
    found = dict.fromkeys(
        f"`{name}{_labels(rule)}`"
        for name, rules in table.items()
        for rule in rules
        if _column(rule) == column
    )
    return ", ".join(found) or "–"


def _column(rule: Rule) -> str:
    return "event `xid.N`" if rule.how == "xid" else f"`{rule.column}`"


def _labels(rule: Rule) -> str:
    # Nine rows for the nine clock events would hide the rest.
    only = {name: values for name, values in rule.only.items() if name != "clock_event" and "" not in values}
    text = ", ".join(f"{name}={'/'.join(values)}" for name, values in only.items())
    return f"{{{text}}}" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
