"""The change detector bank: from readings on a clock to accepted changes."""

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from detectors.changepoint.acceptance import Change, ChangeConfig
from detectors.changepoint.detector import ChangeDetectorBank
from detectors.changepoint.standardise import Scale
from tests.detectors.state import same

BACKENDS = ["numpy"] + ["numba"] * (importlib.util.find_spec("numba") is not None)
SECONDS = Scale("log", 0.005)


def feed(bank: ChangeDetectorBank, rows: np.ndarray, start: float = 0.0, every: float = 1.0) -> list[Change]:
    return [change for k, row in enumerate(rows) for change in bank.update(start + k * every, row)]


def step_times(samples: int, series: int, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    return 2.0 * np.exp(np.random.default_rng(seed).normal(0, noise, size=(samples, series)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_the_series_its_onset_and_its_size(backend):
    """A 10 % slowdown of one of four series is found within 10 samples, with its onset to ±2 samples."""
    x = step_times(300, 4)
    x[200:, 2] *= 1.1

    changes = feed(ChangeDetectorBank([SECONDS] * 4, backend=backend), x, start=1000.0, every=2.0)

    (change,) = [c for c in changes if c.significant]
    assert (change.series, change.sign, change.source) == (2, 1, "bocpd")
    assert abs(change.onset - 1400.0) <= 4.0
    assert change.onset_lo <= change.onset <= change.onset_hi <= change.detected_at <= 1420.0
    assert change.effect == pytest.approx(0.1, abs=0.015)
    assert change.level_before == pytest.approx(2.0, rel=0.01)
    assert change.level_after == pytest.approx(2.2, rel=0.02)
    assert change.probability > 0.9


@pytest.mark.parametrize("backend", BACKENDS)
def test_recovery_is_a_change_back(backend):
    """A slowdown that heals gives two significant changes, up and down."""
    x = step_times(400, 1)
    x[150:250] *= 1.2

    changes = feed(ChangeDetectorBank([SECONDS], backend=backend), x)

    assert [c.sign for c in changes if c.significant] == [1, -1]


@pytest.mark.parametrize(
    "noise",
    ["gaussian", "student", "spikes"],
)
def test_is_silent_on_healthy_series(noise):
    """200,000 healthy samples, with heavy tails or 1 % spikes of 8-30 sigma: at most 0.05 changes per
    1,000."""
    rng = np.random.default_rng(21)
    x = rng.standard_t(3, size=(1000, 200)) if noise == "student" else rng.normal(size=(1000, 200))
    if noise == "spikes":
        hit = rng.random(x.shape) < 0.01
        x[hit] += rng.uniform(8, 30, size=hit.sum())
    bank = ChangeDetectorBank([Scale("identity", 0.3)] * 200, config=ChangeConfig(min_relative=0.0))

    assert len(feed(bank, 100 + x)) <= 0.05 * x.size / 1000


def recurring(name: str, samples: int, series: int) -> np.ndarray:
    """Step times of 0.5 % noise with a benign course of their own."""
    x = step_times(samples, series, noise=0.005, seed=40)
    t = np.arange(samples)
    if name == "alternation":
        x[t % 2 == 1] *= 1.08
    elif name == "every fourth step":
        x[t % 4 == 3] *= 1.15
    elif name == "collection":
        x[t % 16 == 7] *= 1.5
    else:
        rng, drift = np.random.default_rng(41), np.zeros(series)
        for k in range(samples):
            drift = 0.8 * drift + rng.normal(0, 0.005, series)
            x[k] *= np.exp(drift)
    return x


@pytest.mark.parametrize("name", ["alternation", "every fourth step", "collection", "correlated"])
def test_recurring_patterns_are_silent_and_hide_nothing(name):
    """Two or more levels by turns, periodic spikes and correlated noise raise nothing in 50,000 samples; a
    15 % slowdown on top is found in every series within 10 samples at the median."""
    x = recurring(name, 1000, 50)
    assert not [c for c in feed(ChangeDetectorBank([SECONDS] * 50), x) if c.significant]

    x[600:] *= 1.15
    found = [c for c in feed(ChangeDetectorBank([SECONDS] * 50), x) if c.significant and c.detected_at >= 600]
    assert {c.series for c in found} == set(range(50))
    assert np.median([c.detected_at - 600 for c in found]) <= 10


def test_finds_three_sigma_under_spikes():
    """With 1 % spikes a +3 sigma step is found in at least 98 of 100 series, median delay at most 7
    samples."""
    rng = np.random.default_rng(22)
    x = rng.normal(size=(400, 100))
    hit = rng.random(x.shape) < 0.01
    x[hit] += rng.uniform(8, 30, size=hit.sum())
    x[300:] += 3
    bank = ChangeDetectorBank([Scale("identity", 0.3)] * 100, config=ChangeConfig(min_relative=0.0))

    delays = {
        c.series: c.detected_at - 300 for c in feed(bank, 100 + x) if c.detected_at >= 300 and c.significant
    }

    assert len(delays) >= 98
    assert np.median(list(delays.values())) <= 7


def test_small_certain_changes_are_recorded_not_significant():
    """+2 % with 0.5 % noise is certain and below the minimum effect of 3 %."""
    x = step_times(300, 1, noise=0.005)
    x[200:] *= 1.02

    changes = feed(ChangeDetectorBank([SECONDS]), x)

    assert [c.significant for c in changes] == [False]
    assert changes[0].effect == pytest.approx(0.02, abs=0.005)


def test_many_small_steps_add_up_to_a_significant_change():
    """Five steps of +2 % are each too small; their sum is reported against the original level."""
    x = step_times(600, 1, noise=0.004)
    for start in range(150, 550, 80):
        x[start:] *= 1.02

    changes = feed(ChangeDetectorBank([SECONDS]), x)

    significant = [c for c in changes if c.significant]
    assert significant
    assert significant[0].level_before == pytest.approx(2.0, rel=0.01)
    assert not changes[0].significant


def test_creeping_change_is_found():
    """A ramp of 10 % over 200 samples is found before it ends."""
    x = step_times(400, 1)
    x[:, 0] *= 1 + 0.1 * np.clip((np.arange(400) - 150) / 200, 0, 1)

    significant = [c for c in feed(ChangeDetectorBank([SECONDS]), x) if c.significant]

    assert significant
    assert 150 < significant[0].detected_at < 350


def test_onset_interval_covers_the_truth():
    """The 90 % interval of a +2 sigma onset holds the true onset in 85-100 % of 300 series."""
    rng = np.random.default_rng(23)
    x = rng.normal(size=(260, 300))
    x[200:] += 2
    bank = ChangeDetectorBank([Scale("identity", 0.3)] * 300, config=ChangeConfig(min_relative=0.0))
    first: dict[int, Change] = {}
    for change in feed(bank, 100 + x):
        if change.detected_at >= 200:
            first.setdefault(change.series, change)

    assert len(first) >= 290
    assert 0.85 <= np.mean([c.onset_lo <= 200 <= c.onset_hi for c in first.values()]) <= 1.0


def test_flapping_is_limited_by_the_refractory_time():
    """Two accepted changes of a series are at least 10 samples apart."""
    x = step_times(400, 1)
    x[100:] *= np.where(np.arange(300) // 6 % 2, 1.3, 1.0)[:, None]

    times = [c.detected_at for c in feed(ChangeDetectorBank([SECONDS]), x)]

    assert len(times) > 1
    assert min(np.diff(times)) >= 10


def test_planned_change_is_silent_after_reset():
    """A level change announced by reset gives a new baseline and no change."""
    x = step_times(400, 2)
    bank = ChangeDetectorBank([SECONDS] * 2)
    before = feed(bank, x[:200])
    bank.reset([True, False])

    assert bank.learning.tolist() == [True, False]
    after = feed(bank, x[200:] * [1.5, 1.0], start=200.0)
    assert before + after == []
    assert bank.level == pytest.approx([3.0, 2.0], rel=0.01)


def test_gap_restarts_the_baseline_and_compares_levels():
    """After 100 missing rows a new level is learned and reported against the one before, onset inside the
    gap."""
    x = step_times(500, 2)
    x[200:300] = np.nan
    x[300:, 0] *= 1.3

    changes = feed(ChangeDetectorBank([SECONDS] * 2), x)

    (change,) = changes
    assert (change.series, change.source, change.significant) == (0, "gap", True)
    assert (change.onset_lo, change.onset, change.onset_hi) == (199.0, 300.0, 300.0)
    assert change.effect == pytest.approx(0.3, abs=0.02)


def test_long_silence_of_all_series_is_a_gap():
    """No rows at all for longer than max_gap_seconds restarts the baseline too."""
    x = step_times(400, 1)
    bank = ChangeDetectorBank([SECONDS])
    feed(bank, x[:200])
    bank.update(200.0 + 3600.0, x[200])

    assert bank.learning.all()


def test_scattered_gaps_change_little():
    """With a fifth of the readings missing the slowdown is still found at its event time."""
    x = step_times(400, 3)
    x[250:, 1] *= 1.1
    x[np.random.default_rng(24).random(x.shape) < 0.2] = np.nan

    (change,) = [c for c in feed(ChangeDetectorBank([SECONDS] * 3), x) if c.significant]

    assert change.series == 1
    assert abs(change.onset - 250) <= 3


def test_late_and_duplicate_rows_are_ignored():
    """Rows that are not newer than the last change nothing."""
    x = step_times(150, 2)
    bank, other = ChangeDetectorBank([SECONDS] * 2), ChangeDetectorBank([SECONDS] * 2)
    for t, row in enumerate(x):
        bank.update(float(t), row)
        bank.update(float(t), row * 3)
        bank.update(float(t) - 5, row * 3)
        other.update(float(t), row)

    assert same(bank, other)


def test_counts_clipped_samples():
    """Isolated spikes are counted per series, not raised."""
    x = step_times(200, 2)
    x[100:200:10, 1] *= 2
    bank = ChangeDetectorBank([SECONDS] * 2)

    assert feed(bank, x) == []
    assert bank.clipped[1] == 10
    assert bank.clipped[0] <= 1


@pytest.mark.parametrize("t", [math.nan, math.inf])
def test_refuses_times_that_are_not_finite(t):
    """Event time must be a number."""
    with pytest.raises(ValueError, match="finite"):
        ChangeDetectorBank([SECONDS]).update(t, [1.0])


def test_refuses_wrong_shapes():
    """One reading per series."""
    with pytest.raises(ValueError, match="expected 2 readings"):
        ChangeDetectorBank([SECONDS] * 2).update(0.0, [1.0])
    with pytest.raises(ValueError, match="baseline"):
        ChangeConfig(baseline=200)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_are_banks_of_their_own(backend):
    """Groups fed in any company, each on its own clock and with late rows among them, give each the changes
    that a bank of its own gives, bit for bit."""
    rng = np.random.default_rng(41)
    x = np.stack([step_times(400, 3, seed=seed) for seed in range(4)], axis=1)
    x[200:, 1, 2] *= 1.2
    x[150:160, 2] = np.nan
    x[220:290, 3, 0] = np.nan
    x[290:, 3, 0] *= 1.3
    x[rng.random(x.shape) < 0.02] = np.nan
    x[230:, 0] *= 0.8
    bank = ChangeDetectorBank(
        [SECONDS, Scale("log1p", 0.01), Scale("sqrt", 0.005)], groups=4, backend=backend
    )
    alone = [
        ChangeDetectorBank([SECONDS, Scale("log1p", 0.01), Scale("sqrt", 0.005)], backend=backend)
        for _ in range(4)
    ]
    expected = [feed(one, x[:, g], start=100.0 * g) for g, one in enumerate(alone)]
    got: list[list[Change]] = [[], [], [], []]
    at = np.zeros(4, np.int64)
    while (at < 400).any():
        which = np.flatnonzero((at < 400) & (rng.random(4) < 0.7))
        rows = np.array([x[at[g], g] for g in which]).reshape(-1, 3)
        for late in (0.0, 3.0):
            times = np.asarray(100.0 * which + at[which] - late, np.float64)
            for change in bank.update_groups(times, rows, which):
                got[change.series // 3].append(replace(change, series=change.series % 3))
        at[which] += 1

    assert got == expected
    assert sum(map(len, expected)) >= 5


def test_shifts_of_many_series_are_those_of_their_contrasts():
    """Computed at once they equal the single contrasts, also over gaps and before the history is full."""
    rng = np.random.default_rng(8)
    bank = ChangeDetectorBank([Scale("identity", 0.1)] * 5, groups=3)
    for t in range(100):
        x = rng.normal(size=(3, 5))
        x[rng.random(x.shape) < 0.1] = np.nan
        x[1, 2] += 5.0 * (t > 60)
        bank.update_groups(np.full(3, float(t)), x, slice(None) if t % 3 else np.arange(3))
    series, onsets = np.array([0, 7, 12]), np.array([50.0, 60.5, 70.0])
    siblings = np.array([[i for i in range(5 * g, 5 * g + 5) if i != s] for g, s in enumerate(series)])

    for s, like, onset, shift in zip(
        series, siblings, onsets, bank.readings.shifts(series, siblings, onsets), strict=True
    ):
        contrast = bank.readings.contrast(int(s), like.tolist(), float(onset))
        assert contrast is not None
        assert shift == contrast.shift
