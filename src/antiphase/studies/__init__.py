"""Studies: tables and figures made from many trainings and measurements, each run once and stored."""
