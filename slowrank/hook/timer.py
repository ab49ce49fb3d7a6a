"""The step timer of one rank, the interface for training scripts."""

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Literal, Unpack

from slowrank.hook.code_line import line_of
from slowrank.hook.identity import Identity, identity_of
from slowrank.hook.misuse import harmless, misuse
from slowrank.hook.sender import OpenStep, Row, Sender

DEFAULT_EXPORTER = "127.0.0.1:9311"
# The order of both is that of a row on the wire (telemetry.datagram.ROW_FIELDS).
PHASES = ("compute", "wait", "data", "comm", "checkpoint")
NOTES = ("tokens", "loss", "grad_norm", "seq_len_sq_sum")
MAY_DIVERGE = ("loss", "grad_norm")

# Sent for a loss or norm that is NaN or infinite: a symptom worth reporting, which JSON cannot express.
# The same number as telemetry.schema.NOT_FINITE: this folder imports nothing of slowrank.
NOT_FINITE = 1e300

# A step is reported as open after so many seconds, and so many times the last one. Chosen: above the jitter
# of steps; a job counts as stalled after 15 s and five usual steps at the earliest (detectors.job.progress).
OPEN_SECONDS, _OPEN_STEPS = 5.0, 2.0

Phase = Literal["compute", "wait", "data", "comm", "checkpoint"]


class StepTimer:
    """Times training steps of one rank.

    ``step_seconds`` runs from the end of the previous step to the end of this one, so that the steps tile
    the time. ``compute_seconds`` is the time in ``phase("compute")`` or, where that is never used, the
    step's own block less the other phases. Phases nest: each is charged only its own time, and one opened
    between two steps counts for the later step. A step left by an exception is not recorded.
    """

    def __init__(
        self,
        *,
        exporter: str | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
        **identity: Unpack[Identity],
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_step = 0
        self._began: float | None = None
        self._thread = threading.get_ident()
        self._ended: float | None = None
        self._last_seconds = 0.0
        self._open: list[tuple[str, float]] = []
        self._phases: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._notes: dict[str, float | int] = {}
        self._step_context = _StepContext(self)
        self._phase_contexts = {name: _PhaseContext(self, name) for name in PHASES}
        # Stays if connecting fails: training must have a working timer, even one that sends nothing.
        self._sender = Sender({}, "off")
        self._connect(exporter, os.environ if environ is None else environ, identity)

    @harmless
    def _connect(self, exporter: str | None, environ: Mapping[str, str], given: Mapping[str, Any]) -> None:
        address = exporter if isinstance(exporter, str) else environ.get("SLOWRANK_EXPORTER")
        # Weak: the sender's thread must not keep the timer alive.
        weak = weakref.WeakMethod(self._open_step)
        self._sender = Sender(
            identity_of(environ, given),
            address or DEFAULT_EXPORTER,
            lambda: call() if (call := weak()) else None,
        )
        # Also runs at interpreter exit, so that the last second of a job is not lost.
        weakref.finalize(self, self._sender.close)

    @property
    def misuse_total(self) -> int:
        """Wrong calls seen so far in this process."""
        return misuse.total

    @property
    def dropped_total(self) -> int:
        """Step rows that could not be handed to the socket."""
        return self._sender.dropped

    def step(self, step: int | None = None, **notes: float | int | None) -> "_StepContext":
        """Return the context manager around one step; ``notes`` are those of ``note``."""
        self._step_context.arguments = (step, notes)
        return self._step_context

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Return the context manager around one phase of a step."""
        try:
            return self._phase_contexts[name]
        except (KeyError, TypeError):
            misuse.note(f"phase must be one of {', '.join(PHASES)}")
            return nullcontext()

    @harmless
    def begin_step(self, step: int | None = None, **notes: float | int | None) -> None:
        """Begin step ``step`` (default: one more than the last, from 0)."""
        now = self._clock()
        if self._began is not None:
            misuse.note("begin_step inside a step: the unfinished step is dropped")
            self._reset(None)
        if step is not None:
            # A step may be given as a float, and above 2^53 floats skip whole numbers.
            if _is_number(step) and abs(step) < 2**53:
                self._next_step = int(step)
            else:
                misuse.note("step must be a whole number")
        # Phases since the last step, usually loading data, belong to this one.
        self._before, self._phases = self._phases, {}
        self._began, self._thread = now, threading.get_ident()
        if notes:
            self.note(**notes)

    @harmless
    def end_step(self) -> None:
        """End the step and queue its row."""
        # Read first: the time of the hook itself is not part of the step.
        now = self._clock()
        if self._began is None:
            misuse.note("end_step without begin_step")
            return
        while self._open:
            misuse.note("a phase was still open at the end of its step")
            self._leave(now)
        row = self._row(now)
        self._next_step += 1
        self._reset(now)
        self._sender.put(row)

    @harmless
    def note(self, **notes: float | int | None) -> None:
        """Attach ``tokens``, ``loss``, ``grad_norm`` or ``seq_len_sq_sum`` to the current step.

        They are plain numbers; ``seq_len_sq_sum`` adds up the squared lengths of the batch's sequences.
        A loss or norm may be NaN or infinite. A device tensor is refused: reading it would make the hook
        wait for the device.
        """
        for name, value in notes.items():
            if name not in NOTES:
                misuse.note(f"a step takes the notes {', '.join(NOTES)}")
            elif value is None:
                self._notes.pop(name, None)
            elif _is_number(value):
                self._notes[name] = value
            elif name in MAY_DIVERGE and isinstance(value, float):
                self._notes[name] = NOT_FINITE
            else:
                misuse.note(f"{name} must be a finite plain number, not {type(value).__name__}")

    @harmless
    def flush(self) -> None:
        """Send queued rows now, instead of within a second."""
        self._sender.flush()

    @harmless
    def close(self) -> None:
        """Flush and stop the sender; steps timed later start it again."""
        self._sender.close()

    def _open_step(self) -> OpenStep | None:
        """Return the step that takes too long, seen from the sender's thread; None while there is none."""
        since = self._ended if self._ended is not None else self._began
        if since is None:
            return None
        seconds = self._clock() - since
        if seconds < max(OPEN_SECONDS, _OPEN_STEPS * self._last_seconds):
            return None
        # A copy: the training thread may leave the phase meanwhile.
        phases = [*self._open]
        return self._next_step, phases[-1][0] if phases else "", round(seconds, 3), line_of(self._thread)

    @harmless
    def _abandon_step(self) -> None:
        # No end is recorded: the time of a failed step belongs to none, the next begins with its own block.
        self._reset(None)
        self._next_step += 1

    @harmless
    def _enter(self, name: str) -> None:
        now = self._clock()
        if self._open:
            self._charge(now)
        self._open.append((name, now))

    @harmless
    def _exit(self) -> None:
        if self._open:
            self._leave(self._clock())
        else:
            misuse.note("a phase was left after its step had ended")

    def _charge(self, now: float) -> None:
        name, since = self._open[-1]
        self._phases[name] = self._phases.get(name, 0.0) + now - since
        self._open[-1] = (name, now)

    def _leave(self, now: float) -> None:
        self._charge(now)
        self._open.pop()
        if self._open:
            self._open[-1] = (self._open[-1][0], now)

    def _row(self, now: float) -> Row:
        began = now if self._began is None else self._began
        inside, before = self._phases, self._before
        seconds = {name: inside.get(name, 0.0) + before.get(name, 0.0) for name in {*inside, *before}}
        # Only phases inside the block are subtracted: phases before it are not part of its time.
        seconds.setdefault("compute", max(0.0, now - began - sum(inside.values())))
        start = began if self._ended is None else self._ended
        self._last_seconds = now - start
        return (
            self._next_step,
            # Microseconds, and the seven digits of a 32-bit column: more would only lengthen datagrams.
            round(self._wall_clock(), 6),
            round(now - start, 7),
            *(round(seconds[name], 7) if name in seconds else None for name in PHASES),
            *(self._notes.get(name) for name in NOTES),
        )

    def _reset(self, ended: float | None) -> None:
        self._began, self._ended = None, ended
        self._open.clear()
        self._phases, self._before, self._notes = {}, {}, {}


class _StepContext:
    """``with timer.step():``; one per timer, since a rank runs one step at a time."""

    def __init__(self, timer: StepTimer) -> None:
        # A weak reference: in a cycle the finaliser, which sends the last rows, would wait for the garbage
        # collector.
        self._timer = weakref.proxy(timer)
        self.arguments: tuple[int | None, dict[str, float | int | None]] = (None, {})

    def __enter__(self) -> None:
        step, notes = self.arguments
        self._timer.begin_step(step, **notes)

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            self._timer.end_step()
        else:
            self._timer._abandon_step()


class _PhaseContext:
    """``with timer.phase(name):``."""

    def __init__(self, timer: StepTimer, name: str) -> None:
        self._timer = weakref.proxy(timer)
        self._name = name

    def __enter__(self) -> None:
        self._timer._enter(self._name)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._timer._exit()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
