"""Where models come from: one file for each kind of specification, one line of the registry for each scheme."""
