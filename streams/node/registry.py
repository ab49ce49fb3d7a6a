"""The node detectors, in the order in which they run."""

from functools import partial

from streams.node.batch import Shape
from streams.node.config import NodeConfig
from streams.node.detector import NodeDetector, NodeDetectorFactory
from streams.node.detectors.clock_history import ClockHistory
from streams.node.detectors.cnp_rate import CnpRate
from streams.node.detectors.device_presence import GpuPresence
from streams.node.detectors.exporter_health import ExporterHealth
from streams.node.detectors.frozen_readings import FrozenReadings
from streams.node.detectors.hot_gpus import HotGpus
from streams.node.detectors.idle_nodes import IdleNodes
from streams.node.detectors.last_readings import LastReadings
from streams.node.detectors.level_changes import level_changes
from streams.node.detectors.port_history import PortHistory
from streams.node.detectors.port_wait import PortWait
from streams.node.detectors.read_times import ReadTimes
from streams.node.detectors.tcp_delay import TcpDelay
from streams.node.detectors.tcp_loss import TcpLoss
from streams.node.rules.counter_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.node.rules.rule_engine import CountRules, StateRules
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES

NODE_DETECTORS: tuple[NodeDetectorFactory, ...] = (
    # These find nothing by themselves: they fill columns, and add the derived ones that the state rules test.
    FrozenReadings,
    LastReadings,
    ClockHistory,
    HotGpus,
    PortHistory,
    CnpRate,
    ReadTimes,
    # Rules first: the order of suspicions of one sample is part of the output.
    partial(CountRules, "gpu", GPU_COUNTS),
    partial(CountRules, "nic", NIC_COUNTS),
    partial(CountRules, "host", HOST_COUNTS),
    partial(StateRules, "gpu", GPU_STATES),
    partial(StateRules, "nic", NIC_STATES),
    partial(StateRules, "host", NODE_STATES),
    GpuPresence,
    level_changes,
    IdleNodes,
    PortWait,
    ExporterHealth,
    TcpLoss,
    TcpDelay,
)


def node_detectors(shape: Shape, nodes: int, config: NodeConfig) -> list[NodeDetector]:
    """Return the detectors of a block of ``nodes`` nodes of one shape."""
    made = (make(shape, nodes, config) for make in NODE_DETECTORS)
    return [detector for detector in made if detector is not None]
