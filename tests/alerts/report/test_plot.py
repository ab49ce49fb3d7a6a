"""The image of a finding's evidence: well-formed, small, harmless, and true to the numbers."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from alerts.report.plot import WIDTH, plot

SVG = "{http://www.w3.org/2000/svg}"
T0 = 1_795_160_000_000
HOSTILE = "</text><script>alert(1)</script>\"' onload=x \x00\x1b[31m\u202e\ud800 & ]]>"


def evidence(**changes):
    """61 points; the subject's value rises from 2.0 to 2.6 at the onset, with a gap of one bucket."""
    t = [T0 + 10_000 * i for i in range(61)]
    y = [None if i == 10 else 2.0 if i < 30 else 2.6 for i in range(61)]
    peers: dict[str, Any] = {
        "role": "peers",
        "metric": "compute_seconds",
        "unit": "s",
        "subject": "n0 GPU 5",
        "y": y,
    }
    peers |= {"peers": "the other ranks", "n": 15, "p05": [1.9] * 61, "median": [2.0] * 61, "p95": [2.1] * 61}
    own: dict[str, Any] = {
        "role": "baseline",
        "metric": "compute_seconds",
        "unit": "s",
        "subject": "n0 GPU 5",
        "y": y,
    }
    own |= {"baseline": {"median": 2.0, "lo": 1.98, "hi": 2.02, "n": 30, "source": "window"}}
    strip = {"metric": "compute_seconds", "unit": "s", "n": 3, "values": [1.9, 2.0, 2.1], "subject": 2.6}
    made: dict[str, Any] = {
        "from": t[0],
        "to": t[-1] + 10_000,
        "bucket_ms": 10_000,
        "onset": T0 + 300_000,
        "onset_interval": [T0 + 295_000, T0 + 310_000],
        "t": t,
        "plots": [peers, own],
        "strip": strip,
    }
    return made | changes


def drawn(finding=None, shown=None, **options):
    return ElementTree.fromstring(plot(finding or {"title": "slow"}, shown or evidence(), **options))


def test_lines_go_where_the_numbers_are():
    """The subject's line steps up at the onset; the gap of one bucket is not bridged."""
    (line, *_) = [p for p in drawn().iter(f"{SVG}path") if p.get("stroke-width") == "1.6"]
    runs = [run for run in line.get("d").split("M") if run]
    assert len(runs) == 2
    points = [tuple(map(float, pair.split())) for pair in runs[1].removesuffix("h0").split("L")]
    assert len(points) == 50
    assert {y for _, y in points[:19]} == {points[0][1]}
    assert {y for _, y in points[19:]} == {points[-1][1]}
    # Up is towards zero. A point stands in the middle of its bucket: the first slow one right of the onset.
    assert points[-1][1] < points[0][1]
    assert points[18][0] < 64 + (WIDTH - 72) * 300 / 610 < points[19][0]


def test_texts_name_what_is_shown():
    """Title, metrics with units, whom the band is of, and the times in UTC."""
    texts = " | ".join(t.text for t in drawn().iter(f"{SVG}text"))
    for part in (
        "slow",
        "compute_seconds (s)",
        "the other ranks",
        "onset 07:38:20",
        "07:33:20",
        "UTC",
        "3 peers",
    ):
        assert part in texts, part


@pytest.mark.parametrize("field", ["title", "metric", "unit", "peers", "subject", "strip"])
def test_hostile_text_is_text(field):
    """Wherever it stands: no element but the plot's own, no attribute that acts, nothing a parser refuses."""
    shown, finding = evidence(), {"title": "slow"}
    if field == "title":
        finding["title"] = HOSTILE
    elif field == "strip":
        shown["strip"]["metric"] = HOSTILE
    else:
        for one in shown["plots"]:
            one[field] = HOSTILE
    made = plot(finding, shown)
    root = ElementTree.fromstring(made)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {
        *("svg", "title", "rect", "path", "polygon", "text", "circle")
    }
    assert not [name for e in root.iter() for name in e.attrib if name.startswith("on") or "href" in name]
    assert not re.search("[\x00-\x08\x1b\u202e\ud800]", made)
    made.encode()


def test_no_style_no_reference():
    """A strict content policy shows it whole: presentation attributes only."""
    made = plot({"title": "slow"}, evidence())
    assert "style" not in made
    assert "url(" not in made
    assert made.count("http") == 1


def test_it_is_small():
    """Two plots of 61 points, the band and the strip in some kilobytes."""
    assert len(plot({"title": "slow"}, evidence())) < 8_000


def test_nothing_stored_is_said():
    """An image all the same, which says why it is empty."""
    texts = [t.text for t in drawn(shown=evidence(plots=[], strip=None)).iter(f"{SVG}text")]
    assert texts == ["slow", "No telemetry of its window is stored."]


@pytest.mark.parametrize("level", [0.0, 5.0, -3.0, 1e-9, 1.755e9])
def test_a_constant_series_is_a_line(level):
    """One level at all times has a finite frame around it; so have single points and a lone column."""
    shown = evidence(strip=None)
    shown["plots"] = [{"role": "cause", "metric": "m", "unit": "1", "y": [None] * 60 + [level]}]
    numbers = re.findall(r"[-\d.]+(?:e[-+]?\d+)?", plot({"title": "t"}, shown))
    assert "nan" not in plot({"title": "t"}, shown)
    assert numbers


def test_dark_and_light_differ_in_colour_alone():
    """The same drawing in other colours."""
    light, dark = (plot({"title": "t"}, evidence(), theme=theme) for theme in ("light", "dark"))
    assert light != dark
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark)
