"""Kafka consumers: how fast they are, and what a kill costs."""
