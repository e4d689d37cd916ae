"""The error of an impossible schedule."""


class ScheduleError(ValueError):
    """A requested or written schedule is invalid: one sentence with the numbers and what was expected.

    It may be followed by a drawing of the schedule with the faulty cell marked.
    """
