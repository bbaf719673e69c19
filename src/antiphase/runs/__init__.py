"""What one command does and leaves on disk: every row is stored before anything is drawn from it."""
