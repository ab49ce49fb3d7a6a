"""A synthetic GPU training cluster: faults act on work and devices, everything observable is derived.

It does not depend on detectors. ``Cluster(spec, seed=7).run(600)`` yields wire records in event-time order;
``Cluster.truth`` has the injected faults.
"""

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, JobSpec, Planned, Workload
from simulator.cluster.truth import Truth
from simulator.faults.fault import Fault

__all__ = ["Cluster", "ClusterSpec", "Fault", "JobSpec", "Planned", "Truth", "Workload"]
