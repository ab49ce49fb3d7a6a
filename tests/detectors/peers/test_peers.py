import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.peers.peers import PeerGroups, group_median, peer_median, peer_scores

values_and_groups = st.lists(
    st.tuples(st.one_of(st.just(float("nan")), st.floats(-100, 100)), st.integers(0, 3)),
    min_size=1,
    max_size=30,
)


@given(values_and_groups)
def test_leaves_the_rank_itself_out_of_its_reference(rows):
    """Each rank is compared with the plain median of the others of its group that were read."""
    values = np.array([v for v, _ in rows])
    groups = np.array([g for _, g in rows])
    found = peer_median(values, PeerGroups.of(groups))
    for i in range(len(rows)):
        others = values[(groups == groups[i]) & (np.arange(len(rows)) != i)]
        others = others[np.isfinite(others)]
        expected = np.median(others) if others.size else np.nan
        assert found[i] == pytest.approx(expected, nan_ok=True)


@given(st.lists(values_and_groups, min_size=1, max_size=3))
def test_steps_together_are_compared_as_one_by_one(steps):
    """Several steps at once, [steps, ranks], give what each of them gives by itself."""
    ranks = min(len(step) for step in steps)
    values = np.array([[v for v, _ in step[:ranks]] for step in steps])
    groups = PeerGroups.of([g for _, g in steps[0][:ranks]])
    for median in (peer_median, group_median):
        alone = np.stack([median(row, groups) for row in values])
        np.testing.assert_array_equal(median(values, groups), alone)


def test_uses_the_group_median_in_large_groups():
    """Above 64 members one of them hardly moves the median."""
    values = np.random.default_rng(1).normal(size=501)
    found = peer_median(values, PeerGroups.of(np.zeros(501, dtype=int)))
    assert found == pytest.approx(np.full(501, np.median(values)))


def test_group_median_is_nan_only_for_unread_groups():
    """A group without any report has no median."""
    values = np.array([1.0, 3.0, np.nan, np.nan])
    assert group_median(values, PeerGroups.of([0, 0, 1, 1])) == pytest.approx([2.0, np.nan], nan_ok=True)


@pytest.mark.parametrize("bad_share", [0.05, 0.25])
def test_scores_find_several_bad_ranks(bad_share):
    """Ranks deviating in 3 of 20 metrics rank above all others, also when a quarter is bad."""
    rng = np.random.default_rng(3)
    hits = total = 0
    for _ in range(20):
        values = rng.normal(size=(20, 64))
        bad = rng.choice(64, max(1, int(bad_share * 64)), replace=False)
        for rank in bad:
            values[rng.choice(20, 3, replace=False), rank] += 6.0
        scores = peer_scores(values, floors=np.full(20, 0.1)).score
        hits += len(set(np.argsort(-scores)[: len(bad)]) & set(bad))
        total += len(bad)
    assert hits / total >= 0.93


def test_scores_survive_constant_and_missing_metrics():
    """A constant metric is judged by its floor, an unread value by nothing."""
    values = np.ones((2, 8))
    values[0, 3] = 1.5
    values[1, 5] = np.nan
    scores = peer_scores(values, floors=np.array([0.1, 0.1]))
    assert scores.score.argmax() == 3
    assert scores.score[3] == pytest.approx(5.0)
    assert scores.score[5] == 0.0


def test_a_sample_stands_for_a_large_group():
    """Above 1,000 ranks the scores are those of the full medians within the sample's error, NaN included."""
    values = np.random.default_rng(4).normal(size=(20, 4000)).astype(np.float32)
    values[:3, ::40] += 8.0
    values[5, 7] = np.nan
    found = peer_scores(values, floors=np.full(20, 0.1))
    middle = np.nanmedian(values, axis=1, keepdims=True)
    z = (values - middle) / (1.4826 * np.nanmedian(np.abs(values - middle), axis=1, keepdims=True))
    exact = np.sqrt(np.nansum(np.clip(z, -12, 12) ** 2, axis=0))

    assert found.score.dtype == np.float32
    assert found.score == pytest.approx(exact, rel=0.12)
    assert set(np.argsort(-found.score)[:100]) == set(range(0, 4000, 40))


def test_sample_does_not_see_one_slot_of_every_node():
    """A metric that differs by slot is centred on all slots, however many ranks a node has."""
    for per_node in (2, 4, 8, 16):
        slot = np.arange(4096) % per_node
        values = np.tile(slot.astype(float), (1, 1))
        found = peer_scores(values, floors=np.array([0.5]))
        assert abs(found.median[0] - np.median(slot)) <= 0.5


def test_explains_by_signed_deviation():
    """The z of a scored rank names the metric and the direction."""
    values = np.random.default_rng(5).normal(size=(4, 32))
    values[2, 9] -= 15.0
    found = peer_scores(values, floors=np.full(4, 0.1))
    z = found.z(values[:, [9]])[:, 0]

    assert found.score.argmax() == 9
    assert np.abs(z).argmax() == 2
    assert z[2] < -6
