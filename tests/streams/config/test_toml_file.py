"""Tables that cannot be used are refused with the key, the reason and what is allowed."""

import tomllib
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest

from streams.config.detector_catalogue import DETECTORS, FINDINGS
from streams.config.settings import Configs, Tuning
from streams.config.toml_file import TuningError, allowed, config_of, knobs_of, read_tuning, tuning_of
from tests.streams.cluster.weak_signs import REGION


def refused(text):
    with pytest.raises(TuningError) as caught:
        tuning_of(tomllib.loads(text), file="slowrank.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[detectors.peerstep]", ['[detectors."peerstep"]', "no such detector", "peer_step"]),
        ('[detectors.peer_step]\nmode = "silent"', ["[detectors.peer_step] mode", '"on", "shadow" or "off"']),
        ("[detectors.peer_step]\nmode = true", ["mode = True"]),
        ("[detectors.peer_step]\nmin_efect = 0.1", ["min_efect", "no such setting", "min_effect"]),
        ("[detectors.peer_step]\nmin_effect = 3", ["min_effect = 3", "above 0 and below 1", "default 0.02"]),
        ("[detectors.peer_step]\nmin_effect = 0.0", ["min_effect = 0.0"]),
        ('[detectors.peer_step]\nmin_effect = "3 %"', ["min_effect = '3 %'"]),
        ("[detectors.peer_step]\nlearn = 20.5", ["learn = 20.5", "whole number"]),
        ("[detectors.peer_step]\nlearn = true", ["learn = True"]),
        ("[detectors.peer_step]\nhistory = 100001", ["history = 100001", "up to 100000"]),
        ("[detectors.silence]\nstale = nan", ["stale = nan"]),
        ("[detectors.silence]\nstale = inf", ["stale = inf"]),
        ("[detectors.workload]\nfloor = 0.1", ["floor", "mode alone"]),
        ("[detectors.level_changes.bocpd]\nhazart = 0.1", ["level_changes.bocpd] hazart", "hazard"]),
        ("[detectors.level_changes]\nbocpd = 3", ["bocpd must be a table"]),
        ("[detectors.level_changes]\nbaseline = 500", ["[detectors]", "baseline <= history"]),
        ("[detectors]\npeer_step = 'off'", ["[detectors.peer_step] must be a table"]),
        ("detectors = 3", ["[detectors] must be a table"]),
        ('[clusters."a".detectors.x]', ['[clusters."a".detectors."x"]', "no such detector"]),
        ('[clusters."a".detector.peer_step]', ['[clusters."a"] has detector', "detectors and findings"]),
        ('[cluster."a".detectors.peer_step]', ["[clusters.…]"]),
        ('[jobs."j".detectors.silence]\nstale = 20', ["only mode can be set for a job", "[clusters.…]"]),
        ('[jobs."j".findings]\nflap_count = 2', ['[jobs."j".findings] flap_count', "only mode"]),
        ("[findings]\ngpu_hour_price = 2.0", ["gpu_hour_price", "no such setting"]),
        ('[detectors."counter.nothing"]\nmode = "off"', ["no such detector"]),
        ('[detectors."event.xid.79"]\nfaults = 2', ["mode alone"]),
        ("[detectors.gray]\nmodle = 'gray.json'", ["[detectors.gray] modle", "It has mode and model"]),
        ("[detectors.gray]\nmodel = 3", ["[detectors.gray] model = 3", "what `slowrank gray` wrote"]),
        ("[detectors.gray]\nmodel = 'none/gray.json'", ["none/gray.json", "cannot be read (No such file"]),
        ("[detectors.gray]\nmodel = 'pyproject.toml'", ["pyproject.toml", "no model of `slowrank gray`"]),
        (
            '[jobs."j".detectors.gray]\nmodel = "gray.json"',
            ["only mode can be set for a job", "[clusters.…]"],
        ),
    ],
)
def test_what_cannot_be_used_is_named(text, said):
    """The message says which key of which file, and what would be right."""
    message = refused(text)
    assert message.startswith("slowrank.toml: ")
    for part in said:
        assert part in message


def test_two_tables_that_contradict_each_other_are_refused():
    """Each is right alone, together they are not, and they may meet."""
    text = """
        [clusters."a".detectors.level_changes]
        history = 70
        [clusters."a*".detectors.level_changes]
        baseline = 100
    """
    message = refused(text)
    assert '[clusters."a*"] with [clusters."a"]' in message


def test_tables_that_never_meet_need_not_agree():
    """A job is in one cluster."""
    text = """
        [clusters.a.detectors.level_changes]
        history = 70
        [clusters.b.detectors.level_changes]
        baseline = 100
    """
    held = tuning_of(tomllib.loads(text), file="f")
    assert (held.configs("a").node.change.history, held.configs("b").node.change.baseline) == (70, 100)


def test_other_tables_of_the_file_are_left_alone():
    """The settings of the processes stand in the same file."""
    assert tuning_of({"kafka_bootstrap": "k:9092"}, file="f").configs("c") == Configs()


def test_a_file_that_is_not_there_tunes_nothing(tmp_path):
    """It is no error to have none; one that is no TOML is."""
    assert read_tuning(tmp_path / "slowrank.toml").configs("c") == Tuning().configs("c")
    (tmp_path / "slowrank.toml").write_text("[detectors")
    with pytest.raises(TuningError, match=r"slowrank\.toml"):
        read_tuning(tmp_path / "slowrank.toml")


@pytest.mark.parametrize("detector", [*DETECTORS, FINDINGS], ids=lambda d: d.name)
def test_every_setting_may_be_set_to_what_it_is(detector):
    """No default is outside what is allowed, and setting it changes nothing."""
    usual = knobs_of(config_of(detector, Configs()), detector.only)
    numbers = {name: value for name, value in usual.items() if allowed(name, value) is not None}
    table = numbers if detector is FINDINGS else {detector.name: numbers}
    held = tuning_of({"findings" if detector is FINDINGS else "detectors": table}, file="f").configs("c", "j")
    assert (held.job, held.node) == (Configs().job, Configs().node)
    assert replace(held.finding, tables="") == Configs().finding


def test_every_cost_may_be_set_to_what_it_is():
    """Zero for the wait for a spare is the default."""
    usual = asdict(Configs().finding.costs)
    held = tuning_of({"findings": {"costs": usual}}, file="f").configs("c").finding
    assert asdict(held.costs) == usual


def test_tunings_are_told_apart_by_a_fingerprint():
    """It stands for what was said, not for the order it was said in; where nothing is said there is none."""
    one = {"hang": {"mode": "off"}, "stage": {"mode": "shadow"}}
    said: list[dict[str, Any]] = [{}, {"kafka_bootstrap": "k:1"}, {"detectors": {}}, {"detectors": one}]
    marks = [tuning_of(tables, file="f").configs("c").finding.tables for tables in said]
    turned = tuning_of({"detectors": dict(reversed(one.items()))}, file="f").configs("c").finding.tables
    assert marks[:3] == ["", "", ""]
    assert marks[3] == turned != ""


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 20_000,
        f"[findings]\nhold_seconds = 1{'0' * 400}",
        f"[findings]\nhold_seconds = 1{'0' * 5000}",
        '[findings]\nhold_seconds = "\ud800"',
        "\udcff",
    ],
    ids=["deep", "large", "larger", "surrogate", "bytes"],
)
def test_a_hostile_file_is_refused(tmp_path, text):
    """Depth, size and bytes that break a reader are what is wrong with the file, and nothing else breaks."""
    path = tmp_path / "slowrank.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass" if "\ud800" in text else "surrogateescape"))
    with pytest.raises(TuningError):
        read_tuning(path)


def test_thousands_of_jobs_may_have_their_modes():
    """Tables without settings cannot contradict each other, and are not compared."""
    jobs = {f"j{i}": {"detectors": {"hang": {"mode": "off"}}} for i in range(3000)}
    held = tuning_of({"jobs": jobs}, file="f")
    assert held.mode("hang", "c", "j2999") == ("off", 'jobs."j2999"')


def test_a_model_stands_beside_the_file_that_names_it(tmp_path):
    """Each cluster may have its own; a mode needs none."""
    wide = replace(REGION, threshold=99.0)
    for name, region in (("gray.json", REGION), ("wide.json", wide)):
        (tmp_path / name).write_bytes(msgspec.json.encode(region))
    file = tmp_path / "slowrank.toml"
    file.write_text(
        """
        [detectors.gray]
        model = "gray.json"
        [clusters."big-*".detectors.gray]
        model = "wide.json"
        [clusters.trial.detectors.gray]
        mode = "shadow"
        """
    )
    held = read_tuning(file)
    assert [held.configs(cluster).gray for cluster in ("c", "big-1", "trial")] == [REGION, wide, REGION]
    assert held.mode("gray", "trial", rule="gray.node") == ("shadow", 'clusters."trial"')


def test_a_model_of_features_that_nobody_measures_is_refused(tmp_path):
    """At the start, not when nodes are compared."""
    (tmp_path / "gray.json").write_bytes(
        msgspec.json.encode(replace(REGION, features=("moon.phase", *REGION.features[1:])))
    )
    (tmp_path / "slowrank.toml").write_text("[detectors.gray]\nmodel = 'gray.json'")
    with pytest.raises(TuningError, match=r"\[detectors\.gray\] model: .*gray\.json.*features must name"):
        read_tuning(tmp_path / "slowrank.toml")
