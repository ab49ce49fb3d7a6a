"""Terminal output of the demo: progress, findings and the result."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from alerts.kinds import cause_name
from alerts.report.explanation import cause_share
from cli.remote.client import printable
from slowrank import __version__

if TYPE_CHECKING:
    from api.pages.breakable import Choice
    from cli.run.demo_scenario import DemoResult

Json = dict[str, Any]

# metric -> (name, SI units per shown unit, shown unit)
_MEASURES = {
    "gpu.clock.sm_hz": ("SM clock", 1e6, "MHz"),
    "gpu.power_watts": ("power", 1.0, "W"),
    "gpu.temp_celsius": ("temperature", 1.0, "°C"),
    "host.pressure.cpu_some_ratio": ("CPU pressure", 0.01, "%"),
}


class Screen:
    """Prints the lines of the demo; their times are simulated."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[str, tuple[str, str, str]] = {}

    def head(self, *, seed: int, nodes: int, gpus: int, url: str) -> None:
        """Print the header."""
        size = f"{nodes} nodes × {gpus} GPUs, 1 job, {nodes * gpus} ranks"
        self._print(
            f"[bold]slowrank {__version__} demo[/] · simulated: {size} · seed {seed} · real detectors, "
            "in-process pipeline"
        )
        self._print(f"  [green]✔[/] API  {url}   [green]✔[/] this host's own telemetry is watched too")

    def learning(self, at: float, median: float, spread: float) -> None:
        """Print the step time of the healthy job, in seconds."""
        self._at(at, f"learning what normal looks like: step {median:.2f} s ± {spread:.2f}")

    def injected(self, at: float) -> None:
        """Print that the fault was injected."""
        self._at(at, "(fault injected, hidden from the detectors)")

    def finding(self, at: float, finding: Json, start: float) -> None:
        """Print a finding's onset, severity and title; nothing where they have not changed."""
        now = (finding["onset"], finding["severity"], finding["title"])
        before = self._printed.get(finding["id"])
        if before == now:
            return
        self._printed[finding["id"]] = now
        if before is None or before[0] != now[0]:
            lo, onset, hi = (_clock(_seconds(t) - start) for t in _times(finding))
            self._at(at, f"[yellow]●[/] onset estimated {onset}  [dim]\\[{lo} – {hi}][/]")
        # Also where only the onset has changed: the title names its machine.
        colour = "bold red" if finding["severity"] == "critical" else "yellow"
        severity, title = finding["severity"].upper(), _text(finding["title"])
        mark = f"▲ {severity}"
        if before is not None:
            mark = "△ the same" if before[1] == now[1] else f"△ the same, now {severity}"
        self._at(at, f"[{colour}]{mark}[/]  [bold]{title}[/]")

    def details(self, finding: Json, proof: str) -> None:
        """Print cost, cause, ruled-out causes, action, command and the address of the evidence."""
        for name, text in (
            ("cost", _cost(finding)),
            ("cause", _cause(finding)),
            ("not", _ruled_out(finding)),
            ("do", _text((finding.get("action") or {}).get("text", ""))),
            ("drain", _command(finding)),
            ("proof", _text(proof)),
        ):
            if text:
                self._print(f"           [dim]{name:<6}[/] {text}")

    def result(self, result: "DemoResult") -> None:
        """Print whether the right machine was named."""
        right = "[green]yes[/]" if result.correct else "[red]no[/]"
        took = (
            "not found"
            if result.seconds_to_finding is None
            else f"found in {result.seconds_to_finding:.0f} s"
        )
        truth = result.injected
        gpu = "" if truth["gpu_index"] is None else f" GPU {truth['gpu_index']}"
        injected = f"{truth['fault']}, ×{truth['magnitude']:.2f}, {truth['node']}{gpu}"
        self._print(
            f"  {took} · right machine: {right} · false alarms on healthy machines: {result.false_findings}"
            f"   [dim](injected: {injected})[/]"
        )

    def note(self, at: float, text: str) -> None:
        """Print a remark."""
        self._at(at, f"[dim]{escape(text)}[/]")

    def waiting(
        self, url: str, key_file: str, command: str, link: str, choices: "Sequence[Choice]" = ()
    ) -> None:
        """Print how to look at the running demo, and what one can break: ``link`` signs a browser in."""
        self._print("Open in a browser (signs in once, within ten minutes):")
        self._print(f"  {link}")
        self._print("While it runs, in another shell:")
        self._print(f"  export SLOWRANK_URL={url} SLOWRANK_KEY_FILE={key_file}")
        self._print(f"  {command} findings list")
        if choices:
            self._print("Break something else, here or on the page Fleet:")
            self._print("  " + "   ".join(f"[bold]{one.key}[/] {one.title}" for one in choices))
        self._print("Press Ctrl-C or q to quit; the demo's data are removed then.")

    def _at(self, at: float, text: str) -> None:
        self._print(f"  {_clock(at)[:5]}  {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _cost(finding: Json) -> str:
    ratio, hours = finding.get("job_slowdown_ratio"), finding.get("gpu_hours_lost_per_hour")
    parts = []
    if ratio and ratio > 1:
        parts.append(f"job loses {100 * (1 - 1 / ratio):.1f} % of its speed")
    if hours:
        parts.append(f"{hours:.1f} GPU-hours lost an hour, in the mean since the onset")
    if finding.get("cost_per_hour"):
        parts.append(f"{finding['cost_per_hour']:.0f} per hour")
    return "; ".join(parts)


def _cause(finding: Json) -> str:
    cause = finding.get("cause")
    if not cause:
        return ""
    moved = ", ".join(_moved(finding["evidence"]))
    share = cause_share(cause)
    sure = _named(cause["hypothesis"]) + ("" if share is None else f" {100 * share:.0f} %")
    return f"{sure}   ({moved})" if moved else sure


def _moved(evidence: Iterable[Json]) -> Iterator[str]:
    for piece in evidence:
        usual = (piece.get("baseline") or {}).get("median")
        if piece["metric"] in _MEASURES and usual is not None and piece.get("value") is not None:
            name, size, unit = _MEASURES[piece["metric"]]
            yield f"{name} {usual / size:.0f} → {piece['value'] / size:.0f} {unit}"


def _ruled_out(finding: Json) -> str:
    ruled_out = (finding.get("cause") or {}).get("ruled_out") or ()
    return "  ".join(f"{_named(name)} [green]✓[/]" for name in ruled_out)


def _named(hypothesis: str) -> str:
    return _text(cause_name(hypothesis))


def _command(finding: Json) -> str:
    """Return the action's first command, which drains the machine."""
    return _text(next(iter((finding.get("action") or {}).get("commands") or ()), ""))


def _text(text: object) -> str:
    return escape(printable(text))


def _times(finding: Json) -> tuple[str, str, str]:
    lo, hi = finding["onset_interval"]
    return lo, finding["onset"], hi


def _seconds(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{seconds % 60:04.1f}"
