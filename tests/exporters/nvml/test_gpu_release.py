import os

import pytest

from exporters.nvml.gpu_release import DEFAULT_SECONDS, MAX_SECONDS, released

CHANGED = 1_795_160_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", DEFAULT_SECONDS), ("90\n", 90.0), ("soon", DEFAULT_SECONDS), ("1e9", MAX_SECONDS)],
)
def test_the_devices_are_released_for_the_time_in_the_file(tmp_path, text, seconds):
    """From its last change on, ten minutes where it does not say, a day at most."""
    switch = tmp_path / "release-gpus"
    switch.write_text(text)
    os.utime(switch, (CHANGED, CHANGED))

    assert released(switch, CHANGED)
    assert released(switch, CHANGED + seconds - 1)
    assert not released(switch, CHANGED + seconds)


def test_without_the_file_they_are_read(tmp_path):
    """Nor does a folder in its place, or one without read permission, release them."""
    (tmp_path / "release-gpus").mkdir()

    assert not released(tmp_path / "none", CHANGED)
    assert not released(tmp_path / "release-gpus", CHANGED)


def test_a_switch_of_a_clock_that_was_ahead_or_that_is_no_file_holds_nothing(tmp_path):
    """The clock was set back by a year since: the GPUs are not let go for that year; nor for a pipe."""
    switch = tmp_path / "release-gpus"
    switch.write_text("600")
    os.utime(switch, (CHANGED, CHANGED))
    assert released(switch, CHANGED - 599)
    assert not released(switch, CHANGED - 365 * 86400)
    os.mkfifo(tmp_path / "pipe")
    assert not released(tmp_path / "pipe", CHANGED)
