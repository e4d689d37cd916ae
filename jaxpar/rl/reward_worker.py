"""The process in which rewards are computed: `python -m jaxpar.rl.reward_worker NAME`, a line of JSON for each request.

It imports a user's file, so that whatever that does ends with this process. What it prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.strict_json import json_text
from jaxpar.rl.rewards import reward_of


def main(name: str) -> None:
    """Answer requests until standard input ends."""
    # Neither the function nor a process that it begins gets hold of the pipes.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    say = lambda **fields: print(json_text(fields), file=answers, flush=True)
    try:
        function = reward_of(name)
    except UserError as error:
        return say(error=str(error))
    say(ready=True)
    for line in requests:
        say(**_answer(function, json.loads(line)))


def _answer(function: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        made = function(request["prompts"], request["completions"], **request["columns"])
        if inspect.isawaitable(made):
            made = asyncio.run(_awaited(made))
        return {"rewards": [None if one is None else float(one) for one in made]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


async def _awaited(made: Any) -> Any:
    return await made


if __name__ == "__main__":
    main(sys.argv[1])
