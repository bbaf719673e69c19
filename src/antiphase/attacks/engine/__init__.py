"""The engine of all attacks: batches, schedules, verdicts and checks. An attack implements ``Search``; see ``run``."""
