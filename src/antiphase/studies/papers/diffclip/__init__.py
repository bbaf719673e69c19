"""The artefacts of DiffCLIP (2025)."""
