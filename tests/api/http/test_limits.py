"""Token buckets fill and forget as they should."""

from api.http.limits import Limiter, Rate, quota_headers

RATE = Rate(per_second=2, burst=3)


def test_a_bucket_holds_its_burst_and_fills_at_its_rate():
    """Three at once, then one each half second, and never more than three saved up."""
    limiter = Limiter()
    assert [limiter.take("k", RATE, 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limiter.take("k", RATE, 0.25) == 0.25
    assert limiter.take("k", RATE, 0.5) == 0.0
    assert [limiter.take("k", RATE, 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_names_do_not_share_a_bucket():
    """One key's thirst is not another's."""
    limiter = Limiter()
    for _ in range(5):
        limiter.take("a", RATE, 0.0)
    assert limiter.take("b", RATE, 0.0) == 0.0


def test_memory_is_bounded():
    """Made-up names push out the longest unused ones and nothing grows."""
    limiter = Limiter(max_keys=10)
    for i in range(1000):
        limiter.take(f"k{i}", RATE, 0.0)
    assert len(limiter._buckets) == 10


def test_quota_names_what_is_left():
    """Whole requests, and whole seconds until all are back, as the draft's structured fields."""
    limiter, rate = Limiter(), Rate(20, 60)
    for _ in range(7):
        limiter.take("a", rate, 100.0)
    assert quota_headers("r", rate, limiter.left("a", rate, 100.0)) == {
        "ratelimit-policy": '"r";q=60;w=3',
        "ratelimit": '"r";r=53;t=1',
    }
    assert limiter.left("a", rate, 100.25) == 58
    assert limiter.left("a", rate, 999.0) == limiter.left("b", rate, 0.0) == 60
