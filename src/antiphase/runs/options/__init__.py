"""The options of each command as one validated model; imports neither torch nor polars, so that --help is quick."""
