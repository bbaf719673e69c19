"""What every attack shares: rows, batches, schedules, verdicts and checks. An attack is a ``Search``; see ``run``."""
