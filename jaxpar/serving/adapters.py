"""Adapters that clients load, replace and unload, with vLLM's requests: `/v1/load_lora_adapter` and
`/v1/unload_lora_adapter`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.serving.client_folders import folder_within
from jaxpar.serving.fields import LOAD_ADAPTER, UNLOAD_ADAPTER, checked, fields_of
from jaxpar.serving.refusals import Refusal, wrong
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.weights import ServedWeights
from jaxpar.serving.worker import Worker


@dataclass
class Adapters:
    """The names and the indices of adapters, which change in the thread of the event loop alone.

    A replacement is put at an index that no answer uses, so that answers which have begun end with what they began
    with. Then the name changes to it, and the index before is free once its last answer has ended.
    """

    folders: Sequence[Path]
    """Adapters are read from folders in these alone."""
    most: int
    """Names at most; there are more indices."""
    weights: ServedWeights
    model: ServedModel
    worker: Worker
    seconds: float
    """A replacement waits so long for answers to end."""
    _uses: Counter[int] = field(default_factory=Counter)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextmanager
    def used(self, index: int) -> Iterator[None]:
        """An answer uses an index."""
        self._uses[index] += 1
        try:
            yield
        finally:
            self._uses[index] -= 1

    async def load(self, http: HttpRequest, body: bytes) -> PlainTextResponse:
        """Load an adapter, or put another one in its place."""
        checked(http.query_params, {})
        fields = fields_of(body, LOAD_ADAPTER)
        name = _name_of(fields["lora_name"])
        path = folder_within(fields["lora_path"], self.folders, "lora_path", "--adapters")
        async with self._loading:
            self._check_name(name, fields["load_inplace"])
            try:
                adapter = await asyncio.to_thread(self.weights.read_adapter, path)
            except UserError as error:
                raise Refusal(400, str(error), "lora_path") from None
            index = await self._free()
            await asyncio.wrap_future(self.worker.call(lambda: self.weights.put_adapter(index, adapter)))
            self.model.adapters[name] = index
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, http: HttpRequest, body: bytes) -> PlainTextResponse:
        """Forget an adapter; answers that have begun end with it."""
        checked(http.query_params, {})
        name = _name_of(fields_of(body, UNLOAD_ADAPTER)["lora_name"])
        async with self._loading:
            if name not in self.model.adapters:
                raise Refusal(404, f"lora_name: there is no adapter {quoted(name, 60)} here", "lora_name")
            del self.model.adapters[name]
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    def _check_name(self, name: str, again: bool) -> None:
        adapters = self.model.adapters
        if name == self.model.name or not name.isprintable():
            raise wrong("lora_name", name, "a name of letters that can be printed, other than that of the model")
        if name in adapters and not again:
            raise Refusal(
                400, f"lora_name: {quoted(name, 60)} is loaded; expected load_inplace: true to replace it", "lora_name"
            )
        if name not in adapters and len(adapters) >= self.most:
            raise Refusal(
                409, f"lora_name: {len(adapters)} adapters are loaded, and there is room for {self.most}; expected one "
                "to be unloaded before", "lora_name",
            )  # fmt: skip

    async def _free(self) -> int:
        """An index that no name and no answer has; waits for the end of an answer. Raises `Refusal`."""
        until = asyncio.get_running_loop().time() + self.seconds
        while True:
            for index in range(len(self.weights.adapters)):
                if index not in self.model.adapters.values() and not self._uses[index]:
                    return index
            if asyncio.get_running_loop().time() > until:
                raise Refusal(503, f"answers with replaced adapters took longer than {self.seconds:g} s")
            await asyncio.sleep(0.05)


def _name_of(value: object) -> str:
    """The name in a request. Raises `Refusal`."""
    if not isinstance(value, str) or not value:
        raise wrong("lora_name", value, LOAD_ADAPTER["lora_name"].expected)
    return value
