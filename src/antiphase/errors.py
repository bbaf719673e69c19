"""The one exception that stands for a mistake of the caller."""


class UserError(ValueError):
    """Input that cannot be used: the message is one line that names the value, what was expected and the mend.

    The command line prints the line alone and exits with code 2; anything else that is raised is a
    defect of this package and keeps its traceback.
    """


class NoSuchSplit(UserError):
    """A data set has no part of that name."""
