"""The process in which rewards are computed: `python -m jaxpar.rl.rewards.worker NAME`."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxpar.rl.rewards.builtin import Reward, reward_of
from jaxpar.rl.worker_process import serve


def main(name: str) -> None:
    """Answer requests until standard input ends."""
    serve(lambda: partial(_answer, reward_of(name)))


def _answer(function: Reward, request: Mapping[str, Any]) -> dict[str, Any]:
    made: Any = function(request["prompts"], request["completions"], **request["columns"])
    if inspect.isawaitable(made):
        made = asyncio.run(_awaited(made))
    return {"rewards": [None if one is None else float(one) for one in made]}


async def _awaited(made: Any) -> Any:
    return await made


if __name__ == "__main__":
    main(sys.argv[1])
