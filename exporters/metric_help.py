"""What the metrics of the exporter mean, for the HELP lines of its ``/metrics``."""

HELP = {
    "broker_connected": "1 while a broker accepts records.",
    "clock_synchronised": "1 while a service keeps the host's clock and the offset is known.",
    "collector_failures_total": "Errors of a collector that it did not handle itself.",
    "gpu_read_seconds": "Time of the last read of a GPU through NVML.",
    "gpus": "GPUs that are read.",
    "gpus_apart": "GPUs that are read by a process of their own because they answer slowly.",
    "gpus_released": "1 while all GPUs are closed for a reset.",
    "infiniband_ports_blocked": "InfiniBand ports whose counters cannot be read at present.",
    "kernel_log_overwritten_total": "Gaps in the kernel log, which was overwritten before it was read.",
    "kernel_log_readable": "1 while the kernel log can be read.",
    "nics_blocked": "Network interfaces whose counters cannot be read at present.",
    "nvml_child_restarts_total": "Restarts of processes that read GPUs.",
    "nvml_children": "Processes that read GPUs.",
    "nvml_children_unkillable": "Processes that hang in the driver and cannot be ended.",
    "nvml_misses_total": "Ticks without an answer of a GPU.",
    "publish_failures_total": "Failed attempts to reach the brokers.",
    "records_rejected_total": "Records that the brokers refused for good.",
    "records_sent_total": "Records that the brokers acknowledged.",
    "scrape_duration_seconds": "Time that the last tick took.",
    "scrape_failures_total": "Failed scrapes of another exporter, by reason.",
    "scrape_seconds": "Time of the last scrape of another exporter.",
    "scrape_series_unused": "Series of the last scrape that no column takes, by reason.",
    "scrape_targets_blocked": "Other exporters that do not answer at present.",
    "scrapes_total": "Successful scrapes of another exporter.",
    "spool_bytes": "Size of the records that wait for the brokers.",
    "spool_degraded": "1 while records wait in memory because the folder cannot be written.",
    "spool_dropped_total": "Records lost because the spool was full.",
    "spool_free_bytes": "Bytes of records that the spool on disk can still take.",
    "spool_records": "Records that wait for the brokers.",
    "step_datagrams_lost_total": "Messages of training hooks that never arrived, by their numbers.",
    "step_datagrams_rejected_total": "Messages of training hooks that could not be used, by reason.",
    "step_rows_dropped_total": "Step times lost because too many arrived at once.",
    "step_rows_total": "Step times received from training hooks.",
    "tcp_connections": "Established TCP connections at the last read of their round trips.",
    "tcp_connections_left_out": "1 while there are more TCP connections than are read.",
    "ticks_total": "Rounds of reading all sources.",
}


def help_of(name: str) -> str:
    """Return what a metric means; of one that is not listed its name in words."""
    return HELP.get(name) or f"{name.removesuffix('_total').replace('_', ' ').capitalize()}."
