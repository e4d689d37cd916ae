"""The secret of a job: its source, and how a process proves that it knows it without sending it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping

from jaxpar.config.errors import UserError
from jaxpar.distributed.messages import VERSION, Hello, is_token

VARIABLE = "JAXPAR_SECRET"
"""The secret itself, where `distributed.secret_file` is null."""
MOST_BYTES = 4096
CLIENT, FIRST = "guest", "process 0"
"""The role of the prover. Both sides prove over the same data, and neither can reuse the other's proof."""


def find_secret(path: str | None, environment: Mapping[str, str]) -> bytes | None:
    """The content of the file at `path`, or of the variable, without white space around it; None without either.

    Raises:
        UserError: it is empty or too long, or the file cannot be read or is no regular file.
    """
    if path is not None:
        where, what = f"distributed.secret_file: {path!r}", "expected a file with the job's secret in it"
        content = _content(path, where, what)
    elif VARIABLE in environment:
        where, what = VARIABLE, "expected the job's secret in this variable of the environment"
        content = environment[VARIABLE].encode(errors="surrogateescape")
    else:
        return None
    if len(content) > MOST_BYTES:
        raise UserError(f"{where} is larger than {MOST_BYTES} bytes; {what}")
    if not content.strip():
        raise UserError(f"{where} is empty; {what}")
    return content.strip()


def _content(path: str, where: str, what: str) -> bytes:
    """The file's content, at most one byte more than a secret may have. A FIFO is refused at once, not waited for."""
    try:
        file = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path.
        raise UserError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error}); {what}") from error
    try:
        kind = os.fstat(file).st_mode
        if not stat.S_ISREG(kind):
            raise UserError(f"{where} is {_kind(kind)}; {what}")
        with open(file, "rb", closefd=False) as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}); {what}") from error
    finally:
        os.close(file)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a FIFO" if stat.S_ISFIFO(mode) else "a device"


def new_nonce() -> str:
    """A value that was never sent before, for a proof."""
    return secrets.token_hex(32)


def prove(secret: bytes, role: str, hello: Hello, nonce: str) -> str:
    """The proof of `role` that it knows the secret: HMAC-SHA256 over both nonces and the hello message.

    Args:
        secret: shared by both sides.
        role: the prover, `CLIENT` or `FIRST`.
        hello: the client's, with its nonce.
        nonce: that of process 0.
    """
    text = f"jaxpar {VERSION}\n{role}\n{hello.nonce}\n{nonce}\n{hello.process} of {hello.processes}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def is_proof(value: object, secret: bytes, role: str, hello: Hello, nonce: str) -> bool:
    """Whether `value` is the result of `prove` for the same arguments."""
    return is_token(value) and hmac.compare_digest(str(value), prove(secret, role, hello, nonce))
