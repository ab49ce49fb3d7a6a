"""The names by which settings switch and tune detectors."""

from streams.config.detector_catalogue import DETECTORS, NAMES


def test_names_are_given_once():
    """A name means one thing."""
    assert len(NAMES) == len(DETECTORS)
