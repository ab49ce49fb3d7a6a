"""What the HTTP API takes on a filled database, as a real process on loopback."""
