"""Takes workers that have died out of their consumer groups, so that their partitions are read on at once."""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any, cast

from aiokafka.errors import KafkaError

from slowrank.settings import Settings
from streams.runtime.faust_app import Role, group
from streams.runtime.kafka.group_leave import leave_group

log = logging.getLogger(__name__)

# Age of a health file at which its worker counts as dead when there is no such process. Chosen: five rounds;
# a worker of another container, whose processes are not seen from here, has written it lately.
LIVE_SECONDS = 5.0


def take_out(settings: Settings, pid: int) -> None:
    """Take the dead worker with a process id out of its group; log where that fails. Removes its file."""
    for file in settings.streams_runtime_dir.glob(f"streams-*-{pid}.json"):
        report = _read(file)
        file.unlink(missing_ok=True)
        role, member = report.get("role"), report.get("member_id")
        if role in ("detect", "sink") and member:
            _leave(settings, cast("Role", role), str(member))


def take_out_dead(settings: Settings) -> None:
    """Take out all workers of this host that died with whatever supervised them."""
    for file in settings.streams_runtime_dir.glob("streams-*-*.json"):
        pid = file.stem.rpartition("-")[2]
        if pid.isdecimal() and not _exists(int(pid)) and _age(file) > LIVE_SECONDS:
            take_out(settings, int(pid))


def _leave(settings: Settings, role: Role, member: str) -> None:
    try:
        asyncio.run(leave_group(settings.kafka_bootstrap, group(settings, role), member))
    except (KafkaError, TimeoutError) as error:
        log.warning("the dead %s worker keeps its partitions until its session ends: %r", role, error)
    else:
        log.info("the dead %s worker was taken out of its group", role)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
