"""``slowrank findings``: list and handle findings over the API."""

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, NoReturn

import typer

from cli.admin.colour import by_severity
from cli.admin.tables import Output, OutputOption, View, ago, changes, first, note, show, shown
from cli.remote import finding_text
from cli.remote.client import KeyOption, UrlOption, client, fail, printable
from slowrank.client import findings
from slowrank.client.objects import Severity, Verdict

# Period of ``--watch``. Chosen: findings change every few seconds at most, and half a request a second is far
# below the rate limit of a key.
WATCH_SECONDS = 2.0

app = typer.Typer(help="List and handle findings over the API.", no_args_is_help=True, add_completion=False)

FindingId = Annotated[str, typer.Argument(help="Such as fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W.")]
Note = Annotated[str, typer.Option(help="Why; kept in the history.")]


@app.command("list")
def list_findings(
    is_open: Annotated[bool, typer.Option("--open", help="Only open and acknowledged ones.")] = False,
    severity: Annotated[Severity | None, typer.Option(help="Only this severity.")] = None,
    kind: Annotated[str | None, typer.Option(help="Such as straggler.fail_slow.")] = None,
    node: Annotated[str | None, typer.Option(help="Only findings about this node.")] = None,
    job_id: Annotated[str | None, typer.Option("--job", help="Only findings about this job.")] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Those of detectors in shadow mode.")] = False,
    since: Annotated[
        str | None, typer.Option(help="Only those detected since: 2h, 3d or an RFC 3339 time.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of findings.")] = 100,
    output: OutputOption = Output.table,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when findings are listed, with 0 when none.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until interrupted.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List findings, the costliest open ones first."""
    wanted = findings.listed(
        status=["open", "acknowledged"] if is_open else None,
        severity=[severity] if severity else None,
        kind=[kind] if kind else None,
        node=node,
        job_id=job_id,
        shadow="true" if shadow else None,
        from_=_since(since),
        # One more than is listed shows whether there are more.
        limit=min(limit + 1, 1000),
    )
    filters = {
        "--open": is_open,
        "--severity": severity,
        "--kind": kind,
        "--node": node,
        "--job": job_id,
        "--shadow": shadow,
        "--since": since,
    }
    view = _view(" ".join(name for name, value in filters.items() if value))
    with client(url, key) as api:

        def read() -> tuple[list[Any], str]:
            return first(api.each(wanted), limit)

        if watch:
            _watch(lambda: _text(*read(), output, view))
        items, cut = read()
    if kind and not items:
        _refuse_misspelt(kind)
    show(items, output, view)
    note(cut)
    if exit_code and items:
        raise typer.Exit(1)


def _text(items: list[Any], cut: str, output: Output, view: View) -> tuple[str, str]:
    return shown(items, output, view), cut


def _refuse_misspelt(kind: str) -> None:
    """Exit where ``kind`` is nearly the name of a kind: no finding will ever match it."""
    from alerts.kinds import nearest_kind

    if like := nearest_kind(kind):
        fail(f"no finding is of the kind {kind!r} (is it {like!r}?)")


def _watch(read: Callable[[], tuple[str, str]]) -> NoReturn:
    """Print the list whenever it changes; clear the terminal before."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    try:
        for text, cut in changes(read, lambda: time.sleep(WATCH_SECONDS)):
            typer.echo(clear + text)
            note(cut)
    except KeyboardInterrupt:
        pass
    raise typer.Exit


@app.command("show")
def show_finding(
    finding_id: FindingId,
    output: Annotated[
        Literal["text", "json"], typer.Option("-o", "--output", help="For people or programs.")
    ] = "text",
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print one finding with its evidence: for people, or as JSON."""
    with client(url, key) as api:
        finding = api.send(findings.read(finding_id))
        if output == "json":
            typer.echo(json.dumps(finding, indent=2))
            return
        evidence = api.send(findings.evidence(finding_id))
    for line in finding_text.lines(finding, evidence):
        typer.echo(line)


@app.command()
def ack(finding_id: FindingId, note: Note = "", url: UrlOption = None, key: KeyOption = None) -> None:
    """Acknowledge a finding: mark it as being worked on."""
    _transition(finding_id, "acknowledged", note, (url, key))


@app.command()
def resolve(finding_id: FindingId, note: Note = "", url: UrlOption = None, key: KeyOption = None) -> None:
    """Resolve a finding."""
    _transition(finding_id, "resolved", note, (url, key))


@app.command()
def feedback(
    finding_id: FindingId, verdict: Verdict, note: Note = "", url: UrlOption = None, key: KeyOption = None
) -> None:
    """Record whether a finding was right; `slowrank lemons` leaves out those that were not."""
    with client(url, key) as api:
        api.send(findings.feedback(finding_id, verdict, note=note))
    typer.echo(f"{finding_id}: {verdict} recorded")


def _transition(
    finding_id: str,
    status: Literal["acknowledged", "resolved"],
    note: str,
    reach: tuple[str | None, str | None],
) -> None:
    step = findings.acknowledge if status == "acknowledged" else findings.resolve
    with client(*reach) as api:
        _, tag = api.send_for_tag(findings.read(finding_id))
        api.send(step(finding_id, note=note, tag=tag))
    typer.echo(f"{printable(finding_id)}: {status}")


def _since(text: str | None) -> str | None:
    return f"-{text}" if text and text[:1].isdigit() and text[-1:] in "smhdw" else text


def _subject(finding: Any) -> str:
    subject = finding["subject"]
    parts = [f"{name} {subject[name]}" for name in _DOMAINS.get(subject["type"], ()) if subject.get(name)]
    if parts:
        return " ".join(parts)
    where = subject.get("node") or subject.get("job_id") or subject["cluster"]
    if subject.get("gpu_index") is not None:
        return f"{where} GPU {subject['gpu_index']}"
    if subject.get("rank") is not None:
        return f"{where} rank {subject['rank']}"
    if subject.get("ranks") is not None:
        return f"{where} ranks {subject['ranks']}"
    shared = " ".join(f"{name}={at}" for name, at in sorted((subject.get("coords") or {}).items()))
    return f"{where} {subject.get('nic') or shared}".strip()


def _ratio(finding: Any) -> str:
    return f"{finding['slowdown_ratio']:.2f}x" if finding.get("slowdown_ratio") is not None else "-"


def _cost(finding: Any) -> str:
    cost = finding.get("gpu_hours_lost_per_hour")
    return f"{cost:.1f}" if cost is not None else "-"


# Fields that name a subject of a type other than node; nodes have rack and switch labels as well.
_DOMAINS = {"rack": ("rack",), "switch": ("switch", "rail"), "site": ("cluster",)}

_COLUMNS = {
    "severity": lambda f: f["severity"],
    "since": lambda f: ago(f["onset"]),
    "status": lambda f: (
        f["status"]
        + (", silenced" if f.get("silenced_until") else "")
        + (", job silent" if f.get("no_steps_since") else "")
    ),
    "subject": _subject,
    "kind": lambda f: f["kind"],
    "slow": _ratio,
    "gpu-h/h": _cost,
    "conf": lambda f: f"{f['confidence']:.2f}",
    "action": lambda f: f["action"]["code"].replace("_", " ").lower(),
    "id": lambda f: f["id"],
}

_MORE = {
    "silenced until": lambda f: f.get("silenced_until"),
    "no steps since": lambda f: f.get("no_steps_since"),
    "job": lambda f: f["subject"].get("job_id"),
    "onset": lambda f: f["onset"],
    "detected": lambda f: f["detected_at"],
    "detector": lambda f: f["detector"],
    "cause": lambda f: (f.get("cause") or {}).get("hypothesis"),
    "title": lambda f: f["title"],
}


def _view(filters: str) -> View:
    """Return how findings are listed; ``filters`` names the options that leave some out."""
    return View(
        _COLUMNS,
        f"no findings match {filters}: `slowrank findings list` shows all"
        if filters
        else "no findings: nothing is slow, or no telemetry arrives yet (see `slowrank healthcheck api`)",
        more=_MORE,
        paint=lambda line, finding: by_severity(line, finding["severity"]),
        cut=("title", "kind", "subject"),
    )
