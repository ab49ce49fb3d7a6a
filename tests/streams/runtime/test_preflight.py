"""Workers that start before the operator has made what they need."""

import contextlib
import os

import pytest

from slowrank.settings import Settings
from streams.runtime.preflight import require
from streams.runtime.private_folder import Unprepared, make_private
from tests.streams import traffic
from tests.streams.runtime.harness import Rig, wait_for


@pytest.fixture
def unprepared(kafka_bootstrap, database, tmp_path):
    made = Rig(kafka_bootstrap, database, tmp_path)
    yield made
    with contextlib.suppress(Exception):
        made.stop()


def settings_of(rig):
    return Settings(kafka_bootstrap=rig.bootstrap, topic_prefix=rig.prefix, database_url=rig.dsn)


@pytest.mark.parametrize("role", ["detect", "sink"])
def test_a_worker_names_the_topics_it_lacks(unprepared, role):
    """Without its topics a role is refused, and told what makes them."""
    with pytest.raises(Unprepared, match=rf"{unprepared.prefix}dead-letters, .*slowrank topics create"):
        require(settings_of(unprepared), role)


def test_only_the_storing_worker_needs_the_schema(unprepared):
    """With topics and no schema, detection may start."""
    unprepared.create_topics()

    require(settings_of(unprepared), "detect")
    with pytest.raises(Unprepared, match="slowrank migrate"):
        require(settings_of(unprepared), "sink")


def test_what_is_prepared_is_not_refused(unprepared):
    """Topics and schema are all that is asked for."""
    unprepared.prepare()

    for role in ("detect", "sink"):
        require(settings_of(unprepared), role)


def test_servers_that_do_not_answer_are_waited_for(tmp_path):
    """No server is no reason to refuse: workers outlast theirs."""
    away = Rig("127.0.0.1:1", "postgresql://postgres@127.0.0.1:1/none", tmp_path)

    for role in ("detect", "sink"):
        require(settings_of(away), role)


@pytest.mark.slow
def test_a_worker_without_kafka_names_it_and_waits(tmp_path):
    """One line names the address and what to do, instead of a traceback for each attempt."""
    away = Rig("127.0.0.1:1", "postgresql://postgres@127.0.0.1:1/none", tmp_path)
    worker = away.start("detect")
    try:
        wait_for(lambda: "no Kafka at 127.0.0.1:1" in worker.log.read_text(), within=60, what="the reason")
        assert worker.alive
    finally:
        worker.terminate()
    assert "SLOWRANK_KAFKA_BOOTSTRAP" in worker.log.read_text()
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.slow
def test_workers_started_too_early_say_so_and_work_as_soon_as_they_can(unprepared):
    """They are started again until all is there, and then read at once, not minutes later."""
    early = unprepared.start("all")
    wait_for(lambda: "slowrank topics create" in early.log.read_text(), within=60, what="a word about topics")
    unprepared.prepare()
    unprepared.send(traffic.nodes(count=2, seconds=5))

    wait_for(lambda: unprepared.messages("suspicions"), within=90, what="detection to read")
    unprepared.wait_until_read("detect", "sink")


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    """What is rewritten every second goes through no link that another user made."""
    make_private(tmp_path / "mine")
    make_private(tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    make_private(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "link", 1234, -1, follow_symlinks=False)
        with pytest.raises(Unprepared, match="SLOWRANK_STREAMS_RUNTIME_DIR"):
            make_private(tmp_path / "link")
