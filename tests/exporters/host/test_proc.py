import pytest

from exporters.host.proc import HostCollector

STAT = (
    "cpu  {user} 0 100 {idle} {iowait} 0 0 {steal} 0 0\ncpu0 1 2 3\ncpu1 1 2 3\nctxt 5000\nprocs_running 3\n"
)
FILES = {
    "loadavg": "1.50 1.00 0.50 3/500 1234\n",
    "meminfo": "MemTotal:       25276 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n",
    "vmstat": "nr_free_pages 1\npgmajfault 42\noom_kill 2\n",
    "pressure/cpu": "some avg10=1.84 avg60=1.01 avg300=0.69 total=1000000\nfull avg10=0.00 total=0\n",
    "net/snmp": "Ip: InReceives\nIp: 9\nTcp: MaxConn InSegs OutSegs RetransSegs\nTcp: -1 700 600 5\n",
    "net/netstat": "TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 0 4\nIpExt: InOctets\nIpExt: 1\n",
}


@pytest.fixture
def proc(write_tree):
    return write_tree({**FILES, "stat": STAT.format(user=1000, idle=8000, iowait=100, steal=0)})


def test_counters_and_gauges_come_from_their_files(proc, instants):
    """One tick reads memory, load, faults and the run queue in SI units."""
    host = HostCollector(proc).collect(instants(0)).host

    assert host["host.memory.total_bytes"] == 25276 * 1024
    assert host["host.memory.available_bytes"] == 20000 * 1024
    assert host["host.load1"] == 1.5
    assert host["host.run_queue"] == 3
    assert host["host.cpu_count"] == 2
    assert host["host.oom_kills_total"] == 2
    assert host["host.major_page_faults_total"] == 42
    assert host["host.context_switches_total"] == 5000


TCP = ("sent", "received", "retransmitted", "out_of_order")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [600, 700, 5, 4]),
        ({"net/snmp": "Tcp: InSegs OutSegs\nTcp: 700 600\n"}, [600, 700, None, 4]),
        ({"net/snmp": "Tcp: InSegs OutSegs\nTcp: 700\n"}, [None, 700, None, 4]),
        ({"net/snmp": "Tcp: InSegs OutSegs\n", "net/netstat": ""}, [None] * 4),
        (
            {"net/snmp": "Tcp: InSegs\nUdp: 7\n", "net/netstat": "TcpExt: TCPOFOQueue\nTcpExt: x\n"},
            [None] * 4,
        ),
    ],
)
def test_segments_are_those_of_the_network_namespace(proc, write_tree, instants, files, expected):
    """What a kernel does not count, and lines that do not belong together, are not read."""
    write_tree(files)
    host = HostCollector(proc).collect(instants(0)).host
    assert [host[f"host.tcp.{name}_segments_total"] for name in TCP] == expected


def test_ratios_are_over_the_last_tick(proc, write_tree, instants):
    """CPU and pressure are shares of the time since the last tick; the first tick has none."""
    collector = HostCollector(proc)
    first = collector.collect(instants(0)).host
    write_tree({"stat": STAT.format(user=1060, idle=8020, iowait=110, steal=10)})
    write_tree({"pressure/cpu": "some avg10=1.84 avg60=1.01 avg300=0.69 total=1250000\n"})

    second = collector.collect(instants(1)).host

    assert "host.cpu.utilization_ratio" not in first
    assert first["host.pressure.cpu_some_ratio"] is None
    assert second["host.cpu.utilization_ratio"] == pytest.approx(0.7)
    assert second["host.cpu.iowait_ratio"] == pytest.approx(0.1)
    assert second["host.cpu.steal_ratio"] == pytest.approx(0.1)
    assert second["host.pressure.cpu_some_ratio"] == pytest.approx(0.25)
    assert second["host.pressure.io_some_ratio"] is None


def test_iowait_running_backwards_makes_no_spike(proc, write_tree, instants):
    """The kernel's iowait may decrease; the share is then 0, not a huge or negative number."""
    collector = HostCollector(proc)
    collector.collect(instants(0))
    write_tree({"stat": STAT.format(user=1050, idle=8050, iowait=90, steal=0)})

    host = collector.collect(instants(1)).host

    assert host["host.cpu.iowait_ratio"] == 0
    assert host["host.cpu.utilization_ratio"] == pytest.approx(0.5)


def test_the_real_host_answers(instants):
    """On this machine /proc gives a finite value for every column but what the kernel lacks."""
    collector = HostCollector()
    collector.collect(instants(0))

    host = collector.collect(instants(1)).host

    for name in ("host.memory.total_bytes", "host.cpu_count", "host.context_switches_total"):
        value = host[name]
        assert value is not None
        assert value > 0
