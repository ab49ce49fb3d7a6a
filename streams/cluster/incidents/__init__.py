"""Findings about what nodes have in common: a rack, a switch, a rail, a site, the way of the telemetry."""
