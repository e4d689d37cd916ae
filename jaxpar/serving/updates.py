"""New weights that a trainer brings to a server, by the requests with which vLLM takes them: `/pause`, then
`/collective_rpc` with `reload_weights`, and `/resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request as HttpRequest

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.serving.fields import PAUSE, RELOAD, checked, fields_of
from jaxpar.serving.refusals import Refusal, wrong
from jaxpar.serving.worker import Worker


@dataclass(frozen=True)
class Updates:
    """New weights for an engine."""

    folder: Path
    """Weights are read from folders in it, and from nowhere else."""
    worker: Worker
    read: Callable[[Path], None]
    """Goes on with the weights in a folder; called in the worker's thread while no answer is drawn."""

    async def pause(self, http: HttpRequest, body: bytes) -> dict[str, Any]:
        """Let answers that have begun end; others wait."""
        if checked(http.query_params, PAUSE)["mode"] is None:
            raise wrong("mode", None, PAUSE["mode"].expected)
        fields_of(body or b"{}", {})
        await asyncio.wrap_future(self.worker.pause())
        return {"status": "paused"}

    async def resume(self, http: HttpRequest, body: bytes) -> dict[str, Any]:
        """Draw answers again."""
        checked(http.query_params, {})
        fields_of(body or b"{}", {})
        self.worker.resume()
        return {"status": "resumed"}

    async def load(self, http: HttpRequest, body: bytes) -> dict[str, Any]:
        """Read the weights in a folder, whose name is the version of answers from then on."""
        checked(http.query_params, {})
        fields = fields_of(body, RELOAD)
        if fields["method"] is None:
            raise wrong("method", None, RELOAD["method"].expected)
        folder = self._checked(fields["kwargs"].get("weights_path"))
        if not self.worker.paused:
            raise Refusal(409, "the server draws answers; expected POST /pause?mode=wait first")

        def read() -> None:
            self.read(folder)
            self.worker.version = folder.name

        try:
            await asyncio.wrap_future(self.worker.call(read, idle=True))
        except UserError as error:
            raise Refusal(400, f"weights_path: {error}", "weights_path") from None
        return {"results": [None]}

    def _checked(self, path: object) -> Path:
        """The folder at a path. Raises `Refusal`."""
        try:
            folder = Path(path).resolve() if isinstance(path, str) else None
            if folder is not None and folder.parent == self.folder and folder.is_dir():
                return folder
        except (OSError, ValueError):
            pass
        raise Refusal(
            400, f"weights_path: got {quoted(path, 120)}; expected a folder in that of --updates", "weights_path"
        )
