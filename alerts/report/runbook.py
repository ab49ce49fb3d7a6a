"""The address of the runbook of a finding."""

from dataclasses import replace

from alerts.finding import Finding
from alerts.kinds import row_of

PLACE_OF_KIND = "{kind}"


def with_runbook(finding: Finding, template: str) -> Finding:
    """Return the finding with the address of its kind's runbook in its action.

    ``template`` is a URL with ``{kind}``, which is replaced by the kind's row in ``alerts.kinds``; with an
    empty template the finding is returned as it is.
    """
    if not template:
        return finding
    url = template.replace(PLACE_OF_KIND, row_of(finding.kind))
    return replace(finding, action=replace(finding.action, runbook_url=url))
