"""The one exception that stands for a mistake of the caller."""


class UserError(ValueError):
    """Input that cannot be used: the message is one line that names the value, what was expected and the mend.

    The command line prints the line alone and exits with code 2; anything else that is raised is a
    defect of this package and keeps its traceback.
    """


def shown(text: object, most: int = 80) -> str:
    """Return the repr of a value for a message, its middle left out if it is longer than ``most``.

    >>> shown("a" * 100, most=20)
    "'aaaaaaa … aaaaaaa'"
    """
    whole = repr(text)
    side = (most - 3) // 2
    return whole if len(whole) <= most else f"{whole[:side]} … {whole[-side:]}"


class NoSuchSplit(UserError):
    """A data set has no part of that name."""
