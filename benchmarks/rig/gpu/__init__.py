"""A rig for one host with a real NVIDIA GPU: ``slowrank up`` beside a training job that multiplies matrices.

``PYTHONPATH=scripts python -m benchmarks.rig.gpu``. Telemetry, training hook, detectors and API are those of
the product; the work of a rank is real products on the GPU, and a straggler a rank that makes more of them.
"""
