"""What a large installation needs, by simulation: a large fleet, a huge job, a day of coming and going."""
