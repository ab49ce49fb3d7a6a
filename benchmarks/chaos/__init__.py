"""What breaks while telemetry of many nodes flows: what is found and stored all the same, and how soon."""
