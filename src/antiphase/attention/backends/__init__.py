"""What computes attention: `choice.py` picks a backend, `compiled.py` is ours."""
