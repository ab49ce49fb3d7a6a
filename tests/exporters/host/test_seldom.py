from exporters.host.infiniband import InfinibandCollector
from exporters.host.nic import NetCollector
from exporters.host.seldom import PACKETS

ETHERNET = {
    "eth0/operstate": "up",
    "eth0/statistics/rx_bytes": "1000",
    "eth0/statistics/rx_packets": "7",
    "eth0/statistics/tx_packets": "8",
}
INFINIBAND = {
    "mlx5_0/ports/1/state": "4: ACTIVE",
    "mlx5_0/ports/1/counters/port_rcv_data": "250",
    "mlx5_0/ports/1/counters/port_rcv_packets": "7",
    "mlx5_0/ports/1/counters/port_xmit_packets": "8",
}


def sent(collector, instants, times):
    """At each time: whether the ports have packets, and their bytes."""
    found = []
    for at in times:
        (port,) = collector.collect(instants(at)).nic.values()
        found.append((all(port.get(name) is not None for name in PACKETS), port["nic.port.rx_bytes_total"]))
    collector.close()
    return found


def test_packets_are_sent_every_fifth_second_and_all_else_in_each(write_tree, instants):
    """The first tick has them, so that a short run shows them; jitter of a tick moves none."""
    times = [0.0, 1.0, 2.1, 3.0, 4.0, 4.9, 6.0, 9.8]
    wanted = [(at in (0.0, 4.9, 9.8), 1000) for at in times]
    for collector in (NetCollector(write_tree(ETHERNET)), InfinibandCollector(write_tree(INFINIBAND))):
        assert sent(collector, instants, times) == wanted


def test_an_exporter_that_ticks_seldom_sends_them_in_every_tick(write_tree, instants):
    """What is rolled up over ten seconds would else come in lumps of fifty."""
    assert sent(NetCollector(write_tree(ETHERNET)), instants, [0.0, 5.0, 15.0]) == [(True, 1000)] * 3
