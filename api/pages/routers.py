"""The routers of the pages, in the order in which paths are matched."""

from api.pages import assets
from api.pages.routes import (
    demo,
    docs,
    finding,
    finding_forms,
    findings,
    fleet,
    jobs,
    nodes,
    runbooks,
    settings,
    settings_forms,
    sign_in,
    timeline,
)

ROUTERS = (
    assets.router,
    sign_in.router,
    fleet.router,
    demo.router,
    findings.router,
    finding.router,
    finding_forms.router,
    jobs.router,
    nodes.router,
    timeline.router,
    settings.router,
    settings_forms.router,
    docs.router,
    runbooks.router,
)
