"""Real Kafka and TimescaleDB on loopback, without a container engine, for tests and for `make services`."""
