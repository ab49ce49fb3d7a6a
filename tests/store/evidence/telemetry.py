"""A small job whose rank 5 becomes slower, as roll-ups in the tables, and the finding about it."""

from alerts.finding import Cause, Finding, dedup_key, finding_id
from slowrank.telemetry.records import Baseline, Evidence, Subject
from store.telemetry.batches import write_rows
from store.telemetry.buckets import ROLLED, NodeLatest, RankPlace, SampleRollup, StepRollup
from tests.roll_ups import packed

T0 = 1_795_160_000.0
ONSET = T0 + 603.0
RANKS, PER_NODE = 16, 8
CLOCK, SLOW_CLOCK = 1.755e9, 1.095e9
HEALTHY, SLOW = 2.0, 2.6


def seconds_of(rank, bucket):
    """The step time of a rank in a bucket: each a little different, rank 5 slower after the onset."""
    return (SLOW if rank == 5 and bucket + 10 > ONSET else HEALTHY) + rank / 1000


def steps(job="j", *, starts=T0, buckets=130, cluster="c"):
    """Ten minutes before the onset and more after it."""
    return [
        StepRollup(
            cluster=cluster,
            job_id=job,
            attempt=0,
            rank=rank,
            node=f"n{rank // PER_NODE}",
            bucket=starts + 10 * k,
            n_steps=5,
            step_seconds_sum=5 * seconds_of(rank, starts + 10 * k) + 1,
            step_seconds_max=seconds_of(rank, starts + 10 * k) + 0.3,
            compute_seconds_sum=5 * seconds_of(rank, starts + 10 * k),
            compute_seconds_max=seconds_of(rank, starts + 10 * k),
            wait_seconds_sum=0.1,
            first_step=5 * k,
            last_step=5 * k + 4,
        )
        for k in range(buckets)
        for rank in range(RANKS)
    ]


def clocks(*, starts=T0, buckets=130, cluster="c"):
    """The SM clocks of the job's GPUs; GPU 5 of n0 falls at the onset."""
    names = [rolled.column for rolled in ROLLED["gpu"]]

    def values(node, gpu, bucket):
        slow = (node, gpu) == (0, 5) and bucket + 10 > ONSET
        at = (SLOW_CLOCK if slow else CLOCK) + 1e6 * gpu
        return tuple(at if name.startswith("clock_sm") else 0.5 for name in names)

    return [
        SampleRollup("gpu", cluster, f"n{node}", str(gpu), bucket, 10, values(node, gpu, bucket))
        for bucket in (starts + 10 * k for k in range(buckets))
        for node in range(RANKS // PER_NODE)
        for gpu in range(PER_NODE)
    ]


def nodes(job="j", *, at=T0 + 1300, cluster="c"):
    """The latest state of the job's nodes."""
    return [
        NodeLatest(
            cluster=cluster,
            node=f"n{i}",
            last_seen_at=at,
            boot_id="b",
            seq=1,
            gpus=8,
            nics=4,
            job_id=job,
            rack=f"r{i}",
        )
        for i in range(RANKS // PER_NODE)
    ]


def places(job="j", *, at=T0 + 1290, cluster="c"):
    """Where its ranks run: two pipeline stages of two data-parallel groups of four."""
    return [
        RankPlace(
            cluster=cluster,
            job_id=job,
            attempt=0,
            rank=rank,
            node=f"n{rank // PER_NODE}",
            gpu_index=rank % PER_NODE,
            coords=(rank // 4 % 2, rank // 8, rank % 4, None, None),
            world_size=RANKS,
            step=645,
            at=at,
        )
        for rank in range(RANKS)
    ]


def write_job(conn):
    """Store all of it."""
    write_rows(conn, packed([*steps(), *clocks(), *nodes(), *places()]))


def slow_finding(*, subject=None, evidence=None, onset=ONSET, **fields):
    """The finding about rank 5, or about another subject."""
    subject = subject or Subject(
        type="gpu", cluster="c", node="n0", gpu_index=5, rank=5, job_id="j", attempt=0
    )
    given = Baseline(median=2.005, mad=0.002, n=70)
    pieces = (
        Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=2.6, baseline=given),
        Evidence(metric="gpu.clock.sm_hz", unit="Hz", detector="bocpd", value=SLOW_CLOCK),
    )
    key = dedup_key(subject, "straggler.fail_slow")
    defaults = {
        "title": "n0 GPU 5 (rank 5) is 1.30x slower than 15 peers",
        "severity": "critical",
        "status": "open",
        "detected_at": onset + 20,
        "last_seen_at": onset + 30,
        "confidence": 0.97,
        "cause": Cause("throttle.thermal", 0.93, {"clock.low": 0.06}, ("network",)),
    }
    return Finding(
        id=finding_id(key, onset),
        dedup_key=key,
        kind="straggler.fail_slow",
        subject=subject,
        onset=onset,
        onset_lo=onset - 4,
        onset_hi=onset + 5,
        detector="peer_step",
        evidence=pieces if evidence is None else evidence,
        **(defaults | fields),
    )
