"""The abstract methods of `lm_eval.api.model.LM` in release 0.4.13."""

from abc import ABC, abstractmethod
from typing import Any


class LM(ABC):
    """A model as lm-evaluation-harness asks for it; a request has its arguments in `args`."""

    @abstractmethod
    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]: ...

    @abstractmethod
    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]: ...

    @abstractmethod
    def generate_until(self, requests: list[Any]) -> list[str]: ...
