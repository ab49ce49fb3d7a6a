"""What NVIDIA documents and the wire names: boards, XIDs, grades of events."""
