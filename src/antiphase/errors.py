"""The exception for mistakes of the caller."""


class UserError(ValueError):
    """Invalid input: a one-line message says what was wrong with which value, what was expected and how to fix it.

    The command line prints the message and exits with code 2. Any other exception is a bug of this package and keeps
    its traceback.
    """


def shown(text: object, most: int = 80) -> str:
    """Return the repr of a value for a message, with the middle omitted if it is longer than ``most`` characters.

    >>> shown("a" * 100, most=20)
    "'aaaaaaa … aaaaaaa'"
    """
    whole = repr(text)
    side = (most - 3) // 2
    return whole if len(whole) <= most else f"{whole[:side]} … {whole[-side:]}"


class NoSuchSplit(UserError):
    """A data set has no split of that name."""


class Failures(UserError):
    """Several failures of a run that goes on without them: a head line, then one line for each distinct reason."""
