"""The examples in the OpenAPI document are answers that the API could give."""

import pytest

from api.routes.dashboard.jobs import HeatMap, Job
from api.routes.dashboard.nodes import Node
from api.routes.dashboard.series import Series
from api.routes.dashboard.timeline import Annotation, Bar
from api.routes.evidence import _EXAMPLE, DrawnEvidence


@pytest.mark.parametrize("model", [Annotation, Bar, HeatMap, Job, Node, Series])
def test_an_example_fits_its_model(model):
    """Every field with its type, and no field that the model lacks."""
    (example,) = model.model_config["json_schema_extra"]["examples"]
    assert set(example) <= set(model.model_fields)
    assert model.model_validate(example).model_dump(mode="json", exclude_unset=True) == example


def test_the_example_of_evidence_fits():
    """With ``from``, which is a keyword of Python."""
    shown = DrawnEvidence.model_validate(_EXAMPLE)
    assert shown.model_dump(mode="json", by_alias=True, exclude_unset=True) == _EXAMPLE
