"""Which findings count in sums of costs: information that is rather wrong than right does not, as a stop that
may be the end of its job."""

from typing import LiteralString

# Chosen, of the confidence: as likely right as wrong.
LIKELY_FROM = 0.5

# The same as a condition on ``findings``; the indexes and the view of migration 0027 have it in these words.
LIKELY: LiteralString = f"(severity <> 'info' OR confidence >= {LIKELY_FROM})"
