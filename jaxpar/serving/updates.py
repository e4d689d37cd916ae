"""Updates of a server's weights by a trainer, with vLLM's requests: `/pause`, then `/collective_rpc` with
`reload_weights`, and `/resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request as HttpRequest

from jaxpar.config.errors import UserError
from jaxpar.serving.client_folders import folder_within
from jaxpar.serving.fields import PAUSE, RELOAD, checked, fields_of
from jaxpar.serving.refusals import Refusal, wrong
from jaxpar.serving.worker import Worker


@dataclass(frozen=True)
class Updates:
    """New weights for an engine."""

    folder: Path
    """Weights are read from folders in it alone."""
    worker: Worker
    read: Callable[[Path], None]
    """Replaces the weights by those in a folder; called in the worker's thread while no answer is drawn."""

    async def pause(self, http: HttpRequest, body: bytes) -> dict[str, Any]:
        """Finish answers that have begun; others wait."""
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
        path = fields["kwargs"].get("weights_path")
        folder = folder_within(path, [self.folder], "weights_path", "--updates", directly=True)
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
