"""How likely a cause is, where that can be said."""

import pytest

from alerts.report.share import cause_share


@pytest.mark.parametrize(
    ("hypothesis", "confidence", "expected"),
    [
        ("straggler.fail_slow", 1.0, None),
        ("straggler.fail_slow", 0.73, 0.73),
        ("straggler.intermittent", 1.0, None),
        ("throttle.thermal", 1.0, 1.0),
        ("host.cpu_contention", 1.0, 1.0),
        ("xid.79", 1.0, 1.0),
    ],
)
def test_a_symptom_alone_has_no_share(hypothesis, confidence, expected):
    """Nothing that could explain it was seen, perhaps because nothing was sent."""
    assert cause_share({"hypothesis": hypothesis, "confidence": confidence}) == expected
