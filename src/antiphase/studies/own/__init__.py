"""Studies of our own, on the models of the papers' studies."""
