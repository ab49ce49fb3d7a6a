from alerts.report.spark import plots, spark


def test_a_spark_line_keeps_to_its_scale():
    """The least value is the lowest block, what lies outside is cut off, a gap is a blank."""
    assert spark([0.0, 0.5, 1.0, None, 9.0, -9.0], 0.0, 1.0) == "▁▅█ █▁"
    assert spark([2.0, 2.0], 2.0, 2.0) == "▁▁"


def test_a_plot_is_drawn_beside_its_peers_on_one_axis():
    """Heading with scale and time, the finding's own values, its peers, and where the onset is."""
    evidence = {
        "t": [0, 10_000, 20_000, 30_000],
        "bucket_ms": 10_000,
        "onset": 20_000,
        "from": 0,
        "to": 40_000,
        "plots": [
            {"metric": "a", "unit": "Hz", "y": [2.0, 2.0, 1.0, 1.0], "median": [2.0, 2.0, 2.0, None]},
            {"metric": "b", "unit": "", "y": [None] * 4},
        ],
    }
    assert list(plots(evidence, 30, label=8)) == [
        (
            "a in Hz, 1 to 2, 00:00:00 to 00:00:40",
            "subject ██▁▁",
            "peers   ███ ",
            "          ^ onset",
        )
    ]
    [(_, own, _, onset)] = plots(evidence, 2, label=8)
    assert (own, onset) == ("subject █▁", "         ^ onset")
