"""Tables, figures and pages: primitives that know no command."""
