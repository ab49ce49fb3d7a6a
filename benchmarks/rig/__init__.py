"""A rig of real processes: nodes as network namespaces, real exporters, training, Kafka, workers and faults.

``python -m benchmarks.rig`` (``make rig``, as root). Nothing in it is simulated but the device time of a
step, which a rank sleeps. What one machine cannot show is listed in ``docs/detection-quality.md``.
"""
