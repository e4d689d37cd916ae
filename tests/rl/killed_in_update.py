"""`python -m jaxpar.train` that kills itself once its server has the weights of version UPDATE, and waits."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from jaxpar.rl.sampling.vllm import VLLMServer
from jaxpar.train import main

LOAD = "/collective_rpc"


def kill_after(update: int) -> None:
    """Kill this process after a number of loads of weights, before the server is resumed."""
    ask, loads = VLLMServer._request, []

    def asked(server: VLLMServer, path: str, body: Mapping[str, Any] | None = None) -> Any:
        made = ask(server, path, body)
        loads.extend([path] if path == LOAD else [])
        if len(loads) > update:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    VLLMServer._request = asked


if __name__ == "__main__":
    kill_after(int(os.environ["UPDATE"]))
    sys.exit(main())
