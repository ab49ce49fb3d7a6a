"""A headless Chromium that is driven over its debugging pipe: no port is opened and no library is needed.

Used by the tests of the pages and by ``make screenshots``.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Limit on one command. Chosen: a page of a busy machine is drawn in a few.
ANSWER_SECONDS = 90.0
Json = dict[str, Any]
# Begins of Chromium's answers to an expression whose page gave way to the next one.
_NAVIGATED = (
    "Inspected target navigated or closed",
    "Cannot find context with specified id",
    "Execution context was destroyed",
)


class NavigatedError(RuntimeError):
    """The page of a running expression gave way to another, so that it has no value."""


class Page:
    """One tab. ``console`` collects errors, exceptions and breaches of the page's policy as they come."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: str | None = None
        self._loaded = 0
        self.console: list[str] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Json:
        """Send a command of the DevTools protocol and return its result.

        Raises ``NavigatedError`` if the page changed meanwhile, else ``RuntimeError``.
        """
        message: Json = {"id": next(self._numbers), "method": method, "params": params}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS
        while (answer := self._next(until)) is not None:
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    text = answer["error"]["message"]
                    raise (NavigatedError if text.startswith(_NAVIGATED) else RuntimeError)(
                        f"{method}: {text}"
                    )
                result: Json = answer["result"]
                return result
        raise RuntimeError(f"{method}: no answer within {ANSWER_SECONDS:.0f} s")

    def open(self, url: str) -> None:
        """Load a page and wait until its load event."""
        before = self._loaded
        self.call("Page.navigate", url=url)
        until = time.monotonic() + ANSWER_SECONDS
        while self._loaded == before:
            if self._next(until) is None:
                raise RuntimeError(f"{url} was not loaded within {ANSWER_SECONDS:.0f} s")

    def run(self, script: str) -> Any:
        """Evaluate an expression, or await its promise, and return its value. Raises ``RuntimeError``."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"]))
        return done["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true, on this page or on one that follows it."""
        until = time.monotonic() + ANSWER_SECONDS
        while not self._is_true(script):
            if time.monotonic() > until:
                raise RuntimeError(f"not true within {ANSWER_SECONDS:.0f} s: {script}")
            self._next(time.monotonic() + 0.2)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except NavigatedError:
            return False

    def press(self, key: str) -> None:
        """Press and release a key that is one character."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def show(self, width: int, height: int, *, dark: bool) -> None:
        """Set the size of the window in CSS pixels, and the colours that the system prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, quality: int = 80) -> bytes:
        """Return the window as WebP."""
        shot = self.call("Page.captureScreenshot", format="webp", quality=quality)
        return base64.b64decode(shot["data"])

    def _next(self, until: float) -> Json | None:
        """Return the next message, or None at ``until``; note what the page reports."""
        while b"\0" not in self._received:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return None
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        message: Json = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(str([argument.get("value") for argument in params["args"]]))


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Run a browser with its data in ``profile``; yield its tab. Raises ``RuntimeError`` without Chromium."""
    if CHROMIUM is None:
        raise RuntimeError("there is no Chromium here: apt-get install chromium")
    options = "--headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars"
    # It reads commands from descriptor 3 and answers on 4.
    command = (
        f'exec "$0" {options} --remote-debugging-pipe --user-data-dir="$1" 3<&0 4>&1 </dev/null >/dev/null'
    )
    running = subprocess.Popen(
        ["/bin/sh", "-c", command, CHROMIUM, str(profile)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    with running.stdin, running.stdout:
        try:
            yield Page(running.stdin.fileno(), running.stdout.fileno())
        finally:
            running.kill()
            running.wait()
