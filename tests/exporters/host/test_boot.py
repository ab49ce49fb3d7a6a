"""When a node booted, and that every event an exporter sends has a rule, or is known to need none."""

import ast
from pathlib import Path

from exporters.host import boot, kmsg
from exporters.host.boot import BootCollector
from streams.node.rules.event_tables import EVENT_RULES

FOLDER = Path(kmsg.__file__).parent


def test_the_boot_is_reported_once(instants, tmp_path):
    """The first tick reports when the node was booted, in whole seconds of Unix time."""
    booted = int(instants(0).wall) - 5_000
    (tmp_path / "stat").write_text(f"cpu  1 2 3\nbtime {booted}\nprocesses 7\n")
    collector = BootCollector(tmp_path)

    first, second = collector.collect(instants(0)), collector.collect(instants(1))

    assert [(e.code, e.subject) for e in first.events] == [("host.boot", {"booted": booted})]
    assert second.events == ()


def test_a_boot_in_the_future_is_ignored(instants, tmp_path):
    """The clock is wrong then, and nothing that was found would be left."""
    (tmp_path / "stat").write_text(f"btime {int(instants(0).wall) + 60}\n")
    assert BootCollector(tmp_path).collect(instants(0)).events == ()


def test_every_event_of_an_exporter_has_a_rule_or_is_known_to_need_none():
    """A code that no rule knows would be collected, sent, stored and never looked at."""
    declared = {*boot.CODES, *kmsg.CODES, "exporter.records_lost"}
    assert declared <= EVENT_RULES.keys()
    written = {
        keyword.value.value
        for path in FOLDER.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Event"
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }
    assert written <= declared


def test_every_grade_of_an_event_has_a_rule():
    """A message's own severity leads to a rule, too; the severities of events are those of rules."""
    assert kmsg._SEVERITY.keys() <= EVENT_RULES.keys()
