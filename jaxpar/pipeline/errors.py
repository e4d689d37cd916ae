"""The error of a schedule that cannot be."""


class ScheduleError(ValueError):
    """A schedule that a user asked for, or wrote, cannot be: one sentence with the numbers and what was expected.

    It may be followed by a drawing of the schedule with the faulty cell marked.
    """
