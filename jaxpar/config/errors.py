"""The error of a user's mistake."""


class UserError(ValueError):
    """Something that the user can put right: one sentence with the key, the value and what was expected.

    The command line prints the sentence without a traceback and exits with status 2.
    """
