"""An S3-compatible server on this machine, moto's, whose answers can be refused, cut, slowed or filled up."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

BUCKET = "bucket"


class Server:
    """The faults of a running server, which tests set, and what was asked of it."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self.port = 0
        self.asked: list[tuple[str, str]] = []
        """Method and path of each request."""
        self.reset()

    def reset(self) -> None:
        """No faults."""
        self.busy = self.cut = 0
        """How many of the next requests are answered 503, and how many answers are cut in the middle."""
        self.every = 0
        """Each write of so many is answered 503; 0 for none."""
        self._writes = itertools.count(1)
        self.delay_s = 0.0
        self.full = self.stranger = False
        """Whether nothing more can be written; whether keys are unknown."""

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.asked.append((method, path))
        time.sleep(self.delay_s)
        if self.stranger:
            return _refusal(start, "403 Forbidden", "InvalidAccessKeyId")
        if self.full and method in ("PUT", "POST"):
            return _refusal(start, "507 Insufficient Storage", "InsufficientCapacity")
        if self.every and method == "PUT" and next(self._writes) % self.every == 0:
            return _refusal(start, "503 Slow Down", "SlowDown")
        if self.busy:
            self.busy -= 1
            return _refusal(start, "503 Slow Down", "SlowDown")
        if self.cut:
            self.cut -= 1
            return self._cut(environ, start)
        return self._app(environ, start)

    def _cut(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
        content = b"".join(self._app(environ, start))
        yield content[: len(content) // 2]
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def _refusal(start: Callable[..., Any], status: str, code: str) -> list[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()]


@contextmanager
def s3_server() -> Iterator[Server]:
    """A server with an empty bucket, until the end of the block."""
    from werkzeug.serving import make_server

    server = Server()
    http = make_server("127.0.0.1", 0, server, threaded=True)
    server.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def environment(server: Server) -> dict[str, str]:
    """The variables by which the library of S3 finds a server and its keys."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "AWS_ACCESS_KEY_ID": "TESTKEYID",
        "AWS_SECRET_ACCESS_KEY": "test-secret-value", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere", "AWS_CONFIG_FILE": "/nowhere",
    }  # fmt: skip
