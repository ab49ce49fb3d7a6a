"""Offsets of a consumer group while its coordinator is not there yet."""

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata

from streams.runtime.kafka import offsets
from streams.runtime.kafka.offsets import COORDINATOR_TRIES, group_offsets

HELD = {TopicPartition("node-samples", 0): OffsetAndMetadata(7, "")}


class Admin:
    """Answers one question after the other as it was scripted."""

    def __init__(self, answers):
        self.answers = iter(answers)

    async def list_consumer_group_offsets(self, group):
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(offsets, "COORDINATOR_PAUSE_SECONDS", 0)


def test_a_broker_that_has_just_started_is_asked_again():
    """The offsets come once the coordinator is there."""
    missing = GroupCoordinatorNotAvailableError("no coordinator")
    assert asyncio.run(group_offsets(Admin([missing, missing, HELD]), "g")) == HELD


def test_a_coordinator_that_never_comes_is_an_error():
    """The last refusal is raised."""
    missing = GroupCoordinatorNotAvailableError("no coordinator")
    with pytest.raises(GroupCoordinatorNotAvailableError):
        asyncio.run(group_offsets(Admin([missing] * COORDINATOR_TRIES), "g"))


def test_brokers_that_do_not_answer_are_an_error_at_once():
    """Only a missing coordinator is waited for."""
    with pytest.raises(KafkaConnectionError):
        asyncio.run(group_offsets(Admin([KafkaConnectionError("refused")]), "g"))
