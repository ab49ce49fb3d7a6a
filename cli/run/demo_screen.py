"""What the demo prints: progress while it learns, the finding when there is one, the verdict at the end."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from slowrank import __version__
from slowrank.cli.remote import printable

if TYPE_CHECKING:
    from slowrank.cli.demo_scenario import Verdict

Json = dict[str, Any]

_CAUSES = {
    "throttle.thermal": "thermal throttling",
    "throttle.hw_slowdown": "hardware slowdown",
    "throttle.power": "power cap",
    "clock.low": "SM clock below its peers, no reason given",
    "host.cpu_contention": "other load on the host's CPUs",
    "straggler.fail_slow": "the GPU itself, no reason seen in its clock, heat or power",
    "data_loading": "data loading",
    "imbalance.workload": "uneven work",
}
# metric -> (name, units in one of those shown, unit shown): what moved on the machine, in short
_MEASURES = {
    "gpu.clock.sm_hz": ("SM clock", 1e6, "MHz"),
    "gpu.power_watts": ("power", 1.0, "W"),
    "gpu.temp_celsius": ("temperature", 1.0, "°C"),
    "host.pressure.cpu_some_ratio": ("CPU pressure", 0.01, "%"),
}


class Screen:
    """Writes lines as the demo goes on; ``clock`` in them is simulated time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[str, str, str]] = {}

    def head(self, *, seed: int, nodes: int, gpus: int, url: str) -> None:
        """Say what runs."""
        size = f"{nodes} nodes × {gpus} GPUs, 1 job, {nodes * gpus} ranks"
        self._print(
            f"[bold]slowrank {__version__} demo[/] · simulated: {size} · seed {seed} · real detectors, "
            "in-memory bus"
        )
        self._print(f"  [green]✔[/] API  {url}   [green]✔[/] this host's own telemetry is watched beside it")

    def learning(self, at: float, median: float, spread: float) -> None:
        """Say how the job runs while nothing is wrong."""
        self._at(at, f"learning what normal looks like: step {median:.2f} s ± {spread:.2f}")

    def injected(self, at: float) -> None:
        """Say that the fault is in."""
        self._at(at, "(fault injected, hidden from the detectors)")

    def finding(self, at: float, finding: Json, start: float) -> None:
        """Show since when a finding holds, how bad it is and who; later only what has changed of it."""
        now = (finding["onset"], finding["severity"], finding["title"])
        before = self._told.get(finding["id"])
        if before == now:
            return
        self._told[finding["id"]] = now
        if before is None or before[0] != now[0]:
            lo, onset, hi = (_clock(_seconds(t) - start) for t in _times(finding))
            self._at(at, f"[yellow]●[/] onset estimated {onset}  [dim]\\[{lo} – {hi}][/]")
        # Also below an onset that alone has changed: it says whose.
        colour = "bold red" if finding["severity"] == "critical" else "yellow"
        severity, title = finding["severity"].upper(), _text(finding["title"])
        self._at(at, f"[{colour}]▲ {severity}[/]  [bold]{title}[/]")

    def details(self, finding: Json, proof: str) -> None:
        """Show the rest in the order the on-call reads it: cost, cause, what it is not, what to do, proof."""
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

    def verdict(self, verdict: "Verdict") -> None:
        """Say whether the right machine was named."""
        right = "[green]yes[/]" if verdict.correct else "[red]no[/]"
        took = (
            "not found"
            if verdict.seconds_to_finding is None
            else f"found in {verdict.seconds_to_finding:.0f} s"
        )
        truth = verdict.injected
        gpu = "" if truth["gpu_index"] is None else f" GPU {truth['gpu_index']}"
        injected = f"{truth['fault']}, ×{truth['magnitude']:.2f}, {truth['node']}{gpu}"
        self._print(
            f"  {took} · right machine: {right} · false alarms on healthy machines: {verdict.false_findings}"
            f"   [dim](injected: {injected})[/]"
        )

    def waiting(self, url: str, key_file: str, command: str) -> None:
        """Say how to look further."""
        self._print("While it runs, in another shell:")
        self._print(f"  export SLOWRANK_URL={url} SLOWRANK_KEY_FILE={key_file}")
        self._print(f"  {command} findings list")
        self._print("Press Ctrl-C to quit. Nothing is left on your machine.")

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
        parts.append(f"{hours:.1f} GPU-hours every hour")
    if finding.get("cost_per_hour"):
        parts.append(f"{finding['cost_per_hour']:.0f} per hour")
    return " = ".join(parts)


def _cause(finding: Json) -> str:
    cause = finding.get("cause")
    if not cause:
        return ""
    moved = ", ".join(_moved(finding["evidence"]))
    sure = f"{_named(cause['hypothesis'])} {100 * cause['confidence']:.0f} %"
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
    return _CAUSES.get(hypothesis, _text(hypothesis))


def _command(finding: Json) -> str:
    """Return how the machine is emptied, now or for its repair: which of them, the text above it says."""
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
