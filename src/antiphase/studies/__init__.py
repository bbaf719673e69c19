"""Studies: models, attacks and measurements put together, each row on disk before anything is drawn from it."""
