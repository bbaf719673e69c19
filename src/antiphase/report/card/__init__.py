"""Robustness cards: what an audit found, in a form that can be published, checked and compared."""
