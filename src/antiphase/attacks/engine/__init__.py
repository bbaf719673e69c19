"""The engine of all attacks: batches, schedules, verdicts and checks. An attack implements ``Search``; see ``run``."""

SPEED_VERSION = 2  # raise it when attacks take other times or passes; published speed is then measured again
