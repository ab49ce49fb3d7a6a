"""Take the screenshots of docs/images from the running demo, in headless Chromium.

PYTHONPATH=scripts python scripts/screenshots.py (``make screenshots``)
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chromium import Page, chromium

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
MOST_BYTES = 150_000
SLOWRANK = (sys.executable, "-c", "from cli import main; main()")

# Limit on the demo's own finding. Chosen: it takes half a minute on an idle machine.
DEMO_SECONDS = 300.0

WIDE, TALL, PHONE = (1280, 800), (1280, 1180), (390, 844)


def main() -> None:
    """Run the demo, break a NIC and write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        _demo() as link,
        chromium(Path(profile)) as page,
    ):
        base = link.partition("/sign-in")[0]
        page.open(link)
        page.open(f"{base}/")
        finding = page.run("document.querySelector('[data-row] a').getAttribute('href')")
        page.press("2")
        page.wait_for("document.querySelector('.begun a') !== null")
        _until_caught_up(page, base + finding)
        _save(page, "fleet", f"{base}/", WIDE, dark=True)
        _save(page, "finding", base + finding, WIDE, dark=False)
        _save(page, "evidence", f"{base}{finding}", WIDE, dark=False, at="#evidence")
        _save(page, "job", f"{base}/job?cluster=sim&job_id=812345", TALL, dark=False, at="#steps")
        _save(page, "phone", base + finding, PHONE, dark=True)
    print(f"written: {', '.join(sorted(path.name for path in FOLDER.glob('*.webp')))}")


def _until_caught_up(page: Page, url: str) -> None:
    """Wait until the simulated cluster has reached the present: no page warns of old samples then."""
    until = time.monotonic() + DEMO_SECONDS
    page.open(url)
    while page.run("document.querySelector('.notice') !== null"):
        if time.monotonic() > until:
            raise SystemExit("this machine is too busy: the demo does not keep up with the clock")
        time.sleep(5)
        page.open(url)


def _save(page: Page, name: str, url: str, size: tuple[int, int], *, dark: bool, at: str = "body") -> None:
    page.show(*size, dark=dark)
    page.open(url)
    if "/findings/" in url or "/job" in url:
        page.wait_for("document.querySelector('.uplot') !== null")
    if "/job" in url:
        page.wait_for("document.querySelector('[data-heat] canvas') !== null")
    page.run(f"document.querySelector('{at}').scrollIntoView()")
    # The browser paints what was scrolled to in its next frames.
    page.run("new Promise((done) => setTimeout(done, 500))")
    shot = page.screenshot()
    if len(shot) > MOST_BYTES:
        raise SystemExit(f"{name}: {len(shot)} bytes, at most {MOST_BYTES} fit in the repository")
    (FOLDER / f"{name}.webp").write_bytes(shot)


@contextmanager
def _demo() -> Iterator[str]:
    """Run the demo in a terminal of its own; yield the link that signs a browser in."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        shown = Path(folder) / "shown"
        command = " ".join(f"'{part}'" for part in (*SLOWRANK, "demo", "--seed", "7"))
        # `script` gives it a terminal: without one it ends with its finding.
        running = subprocess.Popen(
            ["script", "-qfc", command, str(shown)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            yield _link(shown)
        finally:
            assert running.stdin is not None
            running.stdin.write(b"q")
            running.stdin.close()
            running.wait(60)


def _link(shown: Path) -> str:
    until = time.monotonic() + DEMO_SECONDS
    while time.monotonic() < until:
        text = shown.read_text(errors="replace") if shown.exists() else ""
        if found := re.search(r"http://\S+/sign-in/\S+", text):
            return found[0]
        time.sleep(0.5)
    raise SystemExit(f"the demo has printed no link within {DEMO_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
