"""What people do over HTTP while receivers listen."""


def acknowledge(client, finding):
    """Acknowledge a finding over HTTP, as a person does."""
    path = f"/api/v1/findings/{finding.id}"
    state = {"if-match": client.get(path).headers["etag"]}
    assert client.patch(path, json={"status": "acknowledged"}, headers=state).status_code == 200
