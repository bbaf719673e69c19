"""Studies: tables and figures from many trainings and measurements, each run once and stored."""
