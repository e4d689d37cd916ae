"""`hf://` from a small server with the interface of the Hugging Face Hub."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
REPOSITORY = "org/model"
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(200)), "pytorch_model.bin": b"not read"}

READ = """
import sys
from jaxpar.config.errors import UserError
from jaxpar.interop.sources.open_source import local_model
from jaxpar.remote import store
from jaxpar.remote.cache import local_path, source_url
store.PAUSES_S = ()
folder = local_model("hf://org/model", "run.init_from")
assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
    "config.json": b"{}", "model.safetensors": bytes(range(200))
}
assert source_url(folder) == "hf://org/model"
assert local_path("hf://org/model@main/config.json", "x").read_bytes() == b"{}"
try:
    local_path("hf://org/other", "data.path")
except UserError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """The requests that reading a repository makes."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": f"{len(content):040x}"}
            for name, content in FILES.items()
        ]
        repository = f"/api/models/{REPOSITORY}"
        if path in (repository, f"{repository}/revision/main"):
            self._answer(200, json.dumps({"id": REPOSITORY, "sha": "0" * 40, "siblings": []}).encode())
        elif path == f"{repository}/tree/main":
            self._answer(200, json.dumps(entries).encode())
        elif path.startswith(f"/{REPOSITORY}/resolve/main/"):
            content = FILES[path.rsplit("/", 1)[1]]
            first, last = (self.headers.get("Range") or f"bytes=0-{len(content)}").removeprefix("bytes=").split("-")
            self._answer(206, content[int(first) : int(last) + 1])
        elif path.startswith(f"{repository}/tree/main/"):
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}").get("paths", [])
        found = [
            {"type": "file", "path": name, "size": len(FILES[name]), "oid": "0" * 40} for name in asked if name in FILES
        ]
        self._answer(200, json.dumps(found).encode())

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_of_the_hub_is_copied_without_formats_that_are_not_read(endpoint: str, tmp_path: Path):
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "JAXPAR_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", READ]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("data.path: 'hf://org/other': nothing is there")
