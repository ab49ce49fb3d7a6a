"""``slowrank doctor``: check what is configured, what can be reached and where slowrank is blind.

Exit codes are those of Nagios plugins: 0 all is well, 1 something needs attention, 2 something is broken,
3 nothing could be checked.
"""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from alerts.report.quantity import counted
from cli.admin.colour import by_severity
from cli.remote.client import KeyOption, UrlOption, config_dir, known_key, printable, read_text

if TYPE_CHECKING:
    from slowrank.settings import Settings

State = Literal["ok", "warn", "fail", "off"]
MARKS: dict[State, str] = {"ok": "✔", "warn": "!", "fail": "✘", "off": "-"}
_COLOURS: dict[State, str] = {"warn": "warning", "fail": "critical"}

# Limit for each server (chosen: people wait for the answer, and a local network takes milliseconds).
CONNECT_SECONDS = 2.0
# Telemetry of a node that is older counts as missing, as for ``node.silent``.
SILENT_SECONDS = 30.0
# Nodes that are named in one line (chosen: to recognise a rack).
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One result: what was checked, its state, what was found, and the next step where there is one."""

    name: str
    state: State
    found: str
    next_step: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Check what is configured, reachable and blind; exit 0 well, 1 attention, 2 broken, 3 unknown."""
    checks = list(_checks(url, key))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for line in lines(checks):
            typer.echo(line)
    raise typer.Exit(exit_code(checks))


def exit_code(checks: list[Check]) -> int:
    """Return the exit code for checks: that of the worst; 3 where no server is configured."""
    states = {check.state for check in checks}
    if "fail" in states:
        return 2
    # The settings alone show nothing about servers and telemetry.
    if all(check.state == "off" or check.name in ("settings", "this node") for check in checks):
        return 3
    return int("warn" in states)


def lines(checks: list[Check]) -> Iterator[str]:
    """Yield a line for each check and, where something is to be done, one with the next step."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = printable(f"{MARKS[check.state]} {check.name:<{width}}  {check.found}")
        yield by_severity(line, _COLOURS.get(check.state, ""))
        if check.next_step and check.state != "ok":
            yield f"  {'':<{width}}  → {printable(check.next_step)}"


def _checks(url: str | None, key: str | None) -> Iterator[Check]:
    from cli.admin.config import load_settings

    settings = load_settings()
    file = "slowrank.toml and the environment" if Path("slowrank.toml").exists() else "the environment"
    yield Check("settings", "ok", f"read from {file}; cluster {settings.cluster}")
    yield from _servers(settings)
    yield from _api(url, key)
    yield this_node()


def _servers(settings: "Settings") -> Iterator[Check]:
    """Check the servers that the settings name; defaults are not looked for."""
    if "kafka_bootstrap" in settings.model_fields_set:
        for address in settings.kafka_bootstrap.split(","):
            yield _broker(address.strip())
    else:
        yield Check(
            "kafka", "off", "not configured", "Set SLOWRANK_KAFKA_BOOTSTRAP; `slowrank up` needs none."
        )
    if settings.database_url is None and settings.database_url_file is None:
        next_step = "Set SLOWRANK_DATABASE_URL; `slowrank up` has its own."
        yield Check("database", "off", "not configured", next_step)
    else:
        yield _database(settings)


def _broker(address: str) -> Check:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        next_step = "Is the broker running, and reachable from here?"
        return Check("kafka", "fail", f"{address}: {error}", next_step)
    return Check("kafka", "ok", f"{address} accepts connections")


def _database(settings: "Settings") -> Check:
    import psycopg

    from store.migrate import missing

    try:
        lacking = missing(settings.dsn(), connect_timeout=CONNECT_SECONDS)
    except psycopg.errors.InsufficientPrivilege:
        return Check("database", "ok", "answers; this login may not read which migrations are applied")
    except (ValueError, OSError, psycopg.Error) as error:
        text = str(error).strip().partition("\n")[0]
        return Check("database", "fail", text, "Check SLOWRANK_DATABASE_URL, and that the server runs.")
    if lacking:
        found = f"answers, and lacks {len(lacking)} migrations of this version"
        return Check("database", "fail", found, "Run `slowrank migrate`.")
    return Check("database", "ok", "answers, with the schema of this version")


def _api(url: str | None, key: str | None) -> Iterator[Check]:
    import httpx

    address = url or os.environ.get("SLOWRANK_URL") or read_text(config_dir() / "url")
    if not address:
        next_step = "Start `slowrank up`, or set SLOWRANK_URL."
        yield Check(
            "api", "off", "not configured: neither --url nor SLOWRANK_URL, and no `slowrank up`", next_step
        )
        return
    token = known_key(key)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(base_url=address, headers=headers, timeout=10, trust_env=False) as http:
            ready = http.get("/readyz").json()
            yield Check("api", "ok", f"{address} answers")
            yield from processes(ready)
            if not token:
                next_step = "Set SLOWRANK_KEY_FILE; `slowrank key create` makes a key."
                yield Check(
                    "key", "warn", "no key: what findings and telemetry there are is not checked", next_step
                )
                return
            yield from _seen_with_key(http)
    except (
        httpx.HTTPError,
        httpx.InvalidURL,
        UnicodeEncodeError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        next_step = "Is the API running? `slowrank api run`, or `slowrank up`."
        yield Check("api", "fail", f"{address}: {error}", next_step)


def processes(ready: Any) -> Iterator[Check]:
    """Yield a check for each part that ``/readyz`` reports."""
    for part in ready["checks"]:
        # Beside the checks of the brokers and the database that are set here.
        of_the_api = " of the api" if part["name"] in ("database", "kafka") else ""
        name = f"{part['name']}{of_the_api}"
        yield Check(name, "ok" if part["ok"] else "fail", str(part["detail"]))


def _seen_with_key(http: Any) -> Iterator[Check]:
    answers = {path: http.get(f"/api/v1{path}") for path in ("/fleet", "/webhooks")}
    if any(answer.status_code == 401 for answer in answers.values()):
        yield Check("key", "fail", "the API does not accept the key", "Make another: `slowrank key create`.")
        return
    for path, read in (("/fleet", telemetry), ("/webhooks", webhooks)):
        answer = answers[path]
        if answer.status_code == 403:
            name = path.removeprefix("/").replace("fleet", "telemetry")
            yield Check(name, "off", "not checked: the key lacks the scope")
        else:
            yield from read(answer.raise_for_status().json(), datetime.now(UTC))


def telemetry(fleet: Any, now: datetime) -> Iterator[Check]:
    """Yield checks of ``/fleet``: whether telemetry arrives, which nodes are silent, what ails slowrank."""
    numbers = fleet["numbers"]
    newest = numbers.get("newest_sample_at")
    if not numbers["nodes"] or newest is None:
        next_step = "Start `slowrank exporter run` on the nodes."
        yield Check("telemetry", "warn", "none has arrived: slowrank is blind", next_step)
        return
    age = now.timestamp() - newest / 1000
    found = f"{counted(numbers['nodes'], 'node')}, {counted(numbers['gpus'], 'GPU')}; newest {age:.0f} s ago"
    state: State = "ok" if age <= SILENT_SECONDS else "fail"
    yield Check(
        "telemetry", state, found, "Are exporters and workers running? `slowrank healthcheck streams`"
    )
    silent = [n["node"] for rack in fleet["racks"] for n in rack["nodes"] if n["state"] == "silent"]
    if silent:
        named = ", ".join(silent[:MAX_NAMED]) + (", …" if len(silent) > MAX_NAMED else "")
        found = f"{counted(len(silent), 'node')} {'is' if len(silent) == 1 else 'are'} silent: {named}"
        yield Check("blind", "warn", found, "Look at their exporters.")
    own = sorted(kind for kind in numbers["open_by_kind"] if kind.startswith("self."))
    if own:
        yield Check("slowrank", "fail", f"open findings: {', '.join(own)}", "slowrank findings list --open")


def webhooks(page: Any, _now: datetime) -> Iterator[Check]:
    """Yield checks of ``/webhooks``: whether there is one, and whether each takes what is sent."""
    items = page["items"]
    if not items:
        yield Check("webhooks", "warn", "none: findings are sent to nobody", "slowrank webhook add URL")
    for item in items:
        state: State = {"active": "ok", "failing": "fail"}.get(item["status"], "warn")  # type: ignore[assignment]
        next_step = f"slowrank webhook deliveries {item['id']}"
        yield Check("webhooks", state, f"{item['id']} ({item['format']}) is {item['status']}", next_step)


def this_node(root: Path = Path("/")) -> Check:
    """Return what an exporter could read here; a node without GPUs is none that is monitored."""
    gpus = sum(path.name[6:].isdigit() for path in (root / "dev").glob("nvidia*"))
    ports = sum(1 for _ in (root / "sys/class/infiniband").glob("*/ports/*"))
    log = os.access(root / "dev/kmsg", os.R_OK)
    found = (
        f"{gpus} GPUs, {ports} InfiniBand or RoCE ports, kernel log {'readable' if log else 'not readable'}"
    )
    if gpus and not log:
        return Check(
            "this node", "warn", found, "XIDs are read from the kernel log: give the exporter the right to."
        )
    return Check("this node", "ok" if gpus else "off", found)
