import numpy as np
import pytest

from detectors.straggler.step_detector import StragglerDetector
from streams.job.rows.step_rows import Identity
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions

RANKS, MACHINE = 32, 8


@pytest.mark.parametrize(
    ("members", "name"),
    [(range(24, 32), "gpu_model=A100, pp=1"), (range(8, 16), ""), (range(16), "gpu_model=H100, pp=0")],
)
def test_ranks_are_named_by_what_few_others_share(members, name):
    """Of three machines of one model and two stages, neither says anything about one machine."""
    models = ["H100"] * 24 + ["A100"] * 8
    view = JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=tuple(range(RANKS)),
        identities={
            r: Identity(f"n{r // MACHINE}", None, None, (("pp", r // 16),), models[r]) for r in range(RANKS)
        },
        core=StragglerDetector(RANKS, None),
        open=OpenSuspicions(30.0),
    )
    assert view.role_name(np.array(members)) == name
