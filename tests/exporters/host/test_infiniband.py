import pytest

from exporters.host.infiniband import InfinibandCollector

PORT = "mlx5_0/ports/1"
HEALTHY = {
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/counters/port_rcv_data": "1000\n",
    f"{PORT}/counters/port_xmit_data": "2000\n",
    f"{PORT}/counters/link_downed": "0\n",
    f"{PORT}/counters/symbol_error": "7\n",
    f"{PORT}/counters/port_xmit_wait": "99\n",
    f"{PORT}/hw_counters/out_of_sequence": "5\n",
    f"{PORT}/hw_counters/local_ack_timeout_err": "6\n",
    f"{PORT}/hw_counters/roce_slow_restart": "8\n",
    f"{PORT}/hw_counters/rp_cnp_handled": "9\n",
    f"{PORT}/hw_counters/rnr_nak_retry_err": "10\n",
    f"{PORT}/counters/local_link_integrity_errors": "11\n",
    f"{PORT}/counters/excessive_buffer_overrun_errors": "0\n",
}


def ports(root, instants):
    return InfinibandCollector(root).collect(instants(0)).nic


def test_a_healthy_port_is_read_whole(write_tree, instants):
    """State, rate and counters come in SI units; data words become bytes; 0 stays 0."""
    port = ports(write_tree(HEALTHY), instants)["mlx5_0/1"]

    assert port["nic.port.up"] == 1
    assert port["nic.port.speed_bits_per_second"] == 400e9
    assert port["nic.port.rx_bytes_total"] == 4000
    assert port["nic.port.tx_bytes_total"] == 8000
    assert port["nic.port.link_downed_total"] == 0
    assert port["nic.port.symbol_errors_total"] == 7
    assert port["nic.port.xmit_wait_ticks_total"] == 99
    assert port["nic.port.out_of_sequence_total"] == 5
    assert port["nic.port.local_ack_timeout_total"] == 6
    assert port["nic.port.roce_slow_restart_total"] == 8
    assert port["nic.port.cnp_handled_total"] == 9
    assert port["nic.port.rnr_nak_retry_errors_total"] == 10
    assert port["nic.port.local_link_integrity_errors_total"] == 11
    assert port["nic.port.excessive_buffer_overrun_errors_total"] == 0


@pytest.mark.parametrize(
    ("file", "metric"),
    [
        ("hw_counters/rnr_nak_retry_err", "nic.port.rnr_nak_retry_errors_total"),
        ("counters/local_link_integrity_errors", "nic.port.local_link_integrity_errors_total"),
        ("counters/excessive_buffer_overrun_errors", "nic.port.excessive_buffer_overrun_errors_total"),
    ],
)
@pytest.mark.parametrize("content", [None, "N/A (no PMA)\n", ""])
def test_a_counter_that_the_driver_lacks_is_not_read(write_tree, instants, file, metric, content):
    """Not every driver has every file: what is not there, or is no number, is missing and not zero."""
    tree = {name: text for name, text in HEALTHY.items() if name != f"{PORT}/{file}"}
    if content is not None:
        tree[f"{PORT}/{file}"] = content

    port = ports(write_tree(tree), instants)["mlx5_0/1"]

    assert port[metric] is None
    assert port["nic.port.symbol_errors_total"] == 7


def test_a_file_without_a_number_costs_only_itself(write_tree, instants):
    """``N/A (no PMA)`` is not read, and the port's other counters are."""
    tree = write_tree(HEALTHY | {f"{PORT}/counters/port_rcv_data": "N/A (no PMA)\n"})

    port = ports(tree, instants)["mlx5_0/1"]

    assert port["nic.port.rx_bytes_total"] is None
    assert port["nic.port.tx_bytes_total"] == 8000


def test_devices_without_counters_do_not_hide_others(write_tree, instants):
    """bnxt_re has no counters folder, irdma fails to read, and mlx5 beside them is read whole."""
    tree = write_tree(HEALTHY | {"bnxt_re0/ports/1/state": "4: ACTIVE\n", "irdma0/fw_ver": "1.2\n"})
    (tree / "irdma1").mkdir()
    (tree / "irdma1/ports").write_text("not a folder")

    found = ports(tree, instants)

    assert set(found) == {"mlx5_0/1", "bnxt_re0/1"}
    assert found["bnxt_re0/1"]["nic.port.up"] == 1
    assert found["bnxt_re0/1"]["nic.port.rx_bytes_total"] is None
    assert found["mlx5_0/1"]["nic.port.symbol_errors_total"] == 7


def test_a_port_that_is_down_is_down_and_not_unknown(write_tree, instants):
    """Every state but ACTIVE is down; a missing state is unknown."""
    tree = write_tree({f"{PORT}/state": "1: DOWN\n", "mlx5_1/ports/1/rate": "garbage\n"})

    found = ports(tree, instants)

    assert found["mlx5_0/1"]["nic.port.up"] == 0
    assert found["mlx5_1/1"]["nic.port.up"] is None
    assert found["mlx5_1/1"]["nic.port.speed_bits_per_second"] is None
