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
            {
                "role": "peers",
                "metric": "a",
                "unit": "Hz",
                "y": [2.0, 2.0, 1.0, 1.0],
                "median": [2.0, 2.0, 2.0, None],
            },
            {"metric": "b", "unit": "", "y": [None] * 4},
        ],
    }
    assert list(plots(evidence, 30, label=8)) == [
        (
            "a beside its peers: 1 Hz to 2 Hz, 00:00:00 to 00:00:40",
            "subject ██▁▁",
            "peers   ███ ",
            "          ^ onset",
        )
    ]
    [(_, own, _, onset)] = plots(evidence, 2, label=8)
    assert (own, onset) == ("subject █▁", "         ^ onset")


def test_a_heading_says_beside_what_a_plot_is():
    """Two plots of one metric differ by it; the usual value of the own past stands with it, in its unit."""
    shown = {"metric": "gpu.clock.sm_hz", "unit": "Hz", "y": [1.26e9, 1.76e9]}
    evidence = {
        "t": [0, 10_000],
        "bucket_ms": 10_000,
        "onset": 10_000,
        "from": 0,
        "to": 20_000,
        "plots": [
            shown | {"role": "baseline", "baseline": {"median": 1.755e9}},
            shown | {"role": "cause"},
            shown
            | {"role": "cause", "metric": "host.pressure.cpu_some_ratio", "unit": "1", "y": [0.03, 0.9]},
        ],
    }
    assert [drawn[0].partition(", 00:")[0] for drawn in plots(evidence, 30, label=8)] == [
        "gpu.clock.sm_hz beside its own past, 1.75 GHz: 1.26 GHz to 1.76 GHz",
        "gpu.clock.sm_hz, the suspected cause: 1.26 GHz to 1.76 GHz",
        "host.pressure.cpu_some_ratio, the suspected cause: 0.03 to 0.9",
    ]
