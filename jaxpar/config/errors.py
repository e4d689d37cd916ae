"""The error of a user's mistake."""

from jaxpar.config.spelling import cut, printable

LONGEST_LINE = 2000


class UserError(ValueError):
    """A mistake that the user can correct: one sentence with the key, the value and what was expected.

    The command line prints the sentence without a traceback and exits with status 2. Names and values of a user's files
    stand in it, so control characters and line ends are written as escapes, and a line that is far too long loses its
    middle.

    Args:
        lines: the sentence; several where there are several mistakes, or a drawing.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(cut(printable(line), LONGEST_LINE) for line in lines))
