"""The artefacts of the paper on the robustness of differential attention (2025)."""
