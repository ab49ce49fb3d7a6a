"""What one process makes of a plan: the findings that an installation must store.

As an installation does, it takes the detectors' settings from the ``slowrank.toml`` of the folder, if any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from alerts.finding import Finding
from alerts.report.runbook import with_runbook
from benchmarks.soak.plan import Plan
from cli.admin.config import FILE
from slowrank.settings import Settings
from store.findings.rows import document
from streams.config.toml_file import read_tuning
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline


def expected(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the ``finding.v1`` object of each finding by its id, in its last version."""
    runbooks, last = Settings().runbooks(), dict[str, Finding]()
    pipeline = local_pipeline(read_tuning(FILE))
    last.update((finding.id, finding) for finding in findings_of(plan.records(), pipeline))
    return {id_: document(with_runbook(finding, runbooks)) for id_, finding in last.items()}


def main(argv: list[str]) -> int:
    """Write the findings of the plan ``argv[0]``, as JSON, to the file ``argv[1]``."""
    Path(argv[1]).write_bytes(msgspec.json.encode(expected(Plan(**json.loads(argv[0])))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
