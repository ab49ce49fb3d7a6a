from exporters.host.nic import NetCollector

UP = {
    "eth0/operstate": "up\n",
    "eth0/speed": "100000\n",
    "eth0/carrier_changes": "2\n",
    "eth0/carrier_down_count": "1\n",
    "eth0/statistics/rx_bytes": "1000\n",
    "eth0/statistics/tx_errors": "3\n",
    "lo/operstate": "unknown\n",
    "lo/statistics/rx_bytes": "5\n",
    "veth12ab/operstate": "up\n",
}


def test_physical_interfaces_are_read(write_tree, instants):
    """Physical interfaces become instances; loopback and container links do not."""
    nic = NetCollector(write_tree(UP)).collect(instants(0)).nic

    assert set(nic) == {"eth0"}
    assert nic["eth0"]["nic.port.up"] == 1
    assert nic["eth0"]["nic.port.speed_bits_per_second"] == 100e9
    assert nic["eth0"]["nic.port.carrier_changes_total"] == 2
    assert nic["eth0"]["nic.port.link_downed_total"] == 1
    assert nic["eth0"]["nic.port.rx_bytes_total"] == 1000
    assert nic["eth0"]["nic.port.tx_errors_total"] == 3
    assert nic["eth0"]["nic.port.rx_errors_total"] is None


def test_a_device_link_marks_a_physical_interface(write_tree, instants):
    """An interface with an odd name counts when a device stands behind it."""
    nic = NetCollector(write_tree({"rail7/operstate": "down\n", "rail7/device/vendor": "0x15b3"})).collect(
        instants(0)
    )

    assert nic.nic["rail7"]["nic.port.up"] == 0


def test_an_unknown_speed_is_not_read(write_tree, instants):
    """-1 and an unreadable file both mean that the speed is not known."""
    nic = (
        NetCollector(write_tree({"eth0/operstate": "down\n", "eth0/speed": "-1\n"})).collect(instants(0)).nic
    )

    assert nic["eth0"]["nic.port.speed_bits_per_second"] is None


def test_a_driver_without_operstate_is_judged_by_its_carrier(write_tree, instants):
    """``unknown`` is no answer; the carrier is."""
    tree = write_tree({"eth0/operstate": "unknown\n", "eth0/carrier": "1\n"})

    assert NetCollector(tree).collect(instants(0)).nic["eth0"]["nic.port.up"] == 1
