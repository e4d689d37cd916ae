"""The reasons why requests are not answered."""

from __future__ import annotations

from jaxpar.config.spelling import quoted


class Refusal(Exception):
    """A request that is not answered: an HTTP status and one sentence."""

    def __init__(self, status: int, message: str, field: str | None = None):
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    def body(self) -> dict[str, object]:
        """The JSON body of an error, in OpenAI's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": None}}


def wrong(field: str, value: object, expected: str) -> Refusal:
    """A field with a value that it cannot have."""
    return Refusal(400, f"{field}: got {quoted(value, 60)}; expected {expected}", field)
