"""One series of another system's telemetry: what it is about, and which columns it fills."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slowrank.foreign.rules import RULES, Rule
from slowrank.telemetry.checks import MAX_NAME
from slowrank.telemetry.hardware.boards import board_label
from slowrank.telemetry.rows.sample_rows import TOO_LARGE, is_dcgm_blank
from slowrank.telemetry.schema import Owner

Labels = Mapping[str, str]
Refusal = Literal["unknown_metric", "other_labels", "blank", "no_device", "virtual_interface", "mig_instance"]
"""Why a series fills no column: its name is in no rule; no rule is for its labels; its value is missing;
no label names the device; the interface is no physical one; the GPU is divided."""

_INDEX = re.compile(r"(?:gpu)?[ _-]?([0-9]{1,4})", re.IGNORECASE)
# A container host has hundreds of virtual interfaces, which are of no use for cables and ports.
PHYSICAL_INTERFACE = re.compile(r"(eth|en|ib|bond|wl)[a-z0-9]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:/-]")
_PORT = re.compile(r":[0-9]{1,5}$")
# In order: what relabelling adds, what dcgm-exporter and others name, the address that was scraped.
_NODE_LABELS = ("node", "hostname", "nodename", "k8s_node_name", "host_name", "instance")
_GPU_LABELS = ("gpu", "gpu_index", "hw_name", "hw_id")
_UUID_LABELS = ("uuid", "gpu_uuid")
_SERIAL_LABELS = ("serial", "dcgm_fi_dev_serial", "hw_serial_number")
# dcgm-exporter's mapping of Slurm jobs to GPUs.
_JOB_LABEL = "hpc_job"


@dataclass(frozen=True, slots=True)
class Point:
    """The part of one series that one rule uses; ``cpu`` is the label of that name, for ``share``."""

    rule: Rule
    instance: str
    value: float
    cpu: str = ""


def plain(labels: Labels) -> dict[str, str]:
    """Return labels with names in lower case and ``_`` for dots: ``Hostname`` and ``host.name`` are used."""
    return {name.lower().replace(".", "_"): value for name, value in labels.items()}


def points(name: str, labels: Labels, value: float) -> list[Point] | Refusal:
    """Return what a series with ``plain`` labels fills, or why it fills nothing."""
    rules = RULES.get(name)
    if rules is None:
        return "unknown_metric"
    rules = tuple(rule for rule in rules if _applies(rule, labels))
    if not rules:
        return "other_labels"
    if is_blank(value, dcgm=name.startswith("DCGM_")):
        return "blank"
    found = _device(rules[0].owner, labels)
    if not isinstance(found, _Device):
        return found
    return [Point(rule, found.name, value, labels.get("cpu", "")[:MAX_NAME]) for rule in rules]


def is_blank(value: float, *, dcgm: bool) -> bool:
    """Return whether a value stands for "not read": NaN, infinity, or one of DCGM's sentinels."""
    return not math.isfinite(value) or abs(value) >= TOO_LARGE or (dcgm and is_dcgm_blank(value))


def node_of(labels: Labels) -> str | None:
    """Return the node that ``plain`` labels name, None where they name none."""
    for name in _NODE_LABELS:
        if value := labels.get(name):
            return as_name(_PORT.sub("", value) if name == "instance" else value)
    return None


def job_of(labels: Labels) -> str | None:
    """Return the job that ``plain`` labels name, None where they name none."""
    job = labels.get(_JOB_LABEL)
    return as_name(job) if job else None


def location_of(labels: Labels) -> dict[str, str]:
    """Return the rack and switch that ``plain`` labels name."""
    return {name: as_name(labels[name]) for name in ("rack", "switch") if labels.get(name)}


def gpu_of(labels: Labels) -> str | None:
    """Return the GPU that ``plain`` labels name, by its index or else its UUID; None where they name none."""
    found = _gpu(labels)
    return found.name if isinstance(found, _Device) else None


def nic_of(labels: Labels) -> str | None:
    """Return the network port that ``plain`` labels name (``mlx5_0/1``, ``eth0``), None for none."""
    found = _nic(labels)
    return found.name if isinstance(found, _Device) else None


def uuid_of(labels: Labels) -> str | None:
    """Return the UUID of the GPU, None where no label has it."""
    return next((value for name in _UUID_LABELS if (value := labels.get(name))), None)


def board_of(found: Sequence["Point"], labels: Labels) -> dict[str, str]:
    """Return the label of a sample that names the board of the GPU that ``found`` is about, if any."""
    uuid = uuid_of(labels)
    if uuid is None or found[0].rule.owner != "gpu":
        return {}
    serial = next((value for name in _SERIAL_LABELS if (value := labels.get(name))), None)
    return board_label(found[0].instance, as_name(uuid), as_name(serial) if serial else None)


def as_name(text: str) -> str:
    """Return ``text`` as a valid name of a record, other characters replaced by ``-``."""
    return _NOT_IN_NAMES.sub("-", text[:MAX_NAME]) or "-"


@dataclass(frozen=True, slots=True)
class _Device:
    name: str


def _applies(rule: Rule, labels: Labels) -> bool:
    return all(labels.get(name, "") in values for name, values in rule.only.items())


def _device(owner: Owner, labels: Labels) -> _Device | Refusal:
    if owner == "gpu":
        return _gpu(labels)
    return _nic(labels) if owner == "nic" else _Device("")


def _gpu(labels: Labels) -> _Device | Refusal:
    # The values of slices of a GPU are of different sizes and cannot be compared.
    if labels.get("gpu_i_id"):
        return "mig_instance"
    for name in _GPU_LABELS:
        if index := _INDEX.fullmatch(labels.get(name, "")):
            return _Device(str(int(index[1])))
    named = uuid_of(labels) or labels.get("hw_id")
    return _Device(as_name(named)) if named else "no_device"


def _nic(labels: Labels) -> _Device | Refusal:
    device = labels.get("device") or labels.get("hw_name") or labels.get("hw_id")
    if not device:
        return "no_device"
    if port := labels.get("port"):
        return _Device(as_name(f"{device}/{port}"))
    return _Device(as_name(device)) if PHYSICAL_INTERFACE.fullmatch(device) else "virtual_interface"
