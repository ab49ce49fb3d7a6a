"""The reference of the HTTP API as a page."""

import re


def test_every_operation_and_schema_is_there(signed_in, app):
    """Under its method and path; every link to a schema leads somewhere."""
    text = signed_in("metrics:read").get("/docs").text
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            assert f"<strong>{method.upper()}</strong> {path}</code>" in text
    linked = set(re.findall(r'href="#([^"]+)"', text))
    there = re.findall(r'id="([^"]+)"', text)
    assert linked <= set(there)
    assert len(there) == len(set(there))


def test_a_parameter_has_its_values_and_default(signed_in):
    """As a person needs them to try the operation."""
    text = signed_in().get("/docs").text
    operation = text.partition('id="get-api-v1-findings"')[2].partition("</details>")[0]
    row = operation.partition("<code>severity</code>")[2].partition("</tr>")[0]
    assert "critical, error, warning, info, several" in row
    assert "<td>100</td>" in operation.partition("<code>limit</code>")[2].partition("</tr>")[0]


def test_it_needs_a_key(visitor):
    """As the OpenAPI document does."""
    assert visitor.get("/docs").status_code == 401
