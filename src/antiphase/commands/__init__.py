"""One folder for each command: its options, its run, its result."""
