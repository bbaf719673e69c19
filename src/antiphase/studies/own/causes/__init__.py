"""The parts of the study of causes."""
