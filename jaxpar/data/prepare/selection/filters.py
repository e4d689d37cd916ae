"""The choice of documents by their text alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.user_code import load_function
from jaxpar.data.prepare.choice import Choice


class Filters:
    """The patterns and the function of a choice, ready to use."""

    def __init__(self, choice: Choice) -> None:
        self._keep, self._drop = ([re.compile(one) for one in each] for each in (choice.keep, choice.drop))
        self._name = choice.filter
        self._function = None if choice.filter is None else load_function(choice.filter, "--filter")

    def reason(self, text: str, where: Callable[[], str]) -> str:
        """The option that leaves a text out; empty where it stays.

        Raises `UserError`, with the document that `where` names, where the user's function fails.
        """
        if not all(pattern.search(text) for pattern in self._keep):
            return "keep"
        if any(pattern.search(text) for pattern in self._drop):
            return "drop"
        if self._function is None:
            return ""
        try:
            stays = self._function(text)
        except Exception as error:
            raise UserError(
                f"--filter {self._name}: {where()}: the function fails ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(stays, bool | np.bool_):
            raise UserError(f"--filter {self._name}: {where()}: expected True or False, got {quoted(stays, 40)}")
        return "" if stays else "filter"
