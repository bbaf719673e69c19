"""What computes attention: `contract.py` says what each backend owes, `choice.py` picks one."""
