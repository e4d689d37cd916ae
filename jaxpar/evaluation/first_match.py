"""The process in which the regular expression of a task is compiled and matched (`matching.py`).

Python's matcher backtracks: `(a+)+$` takes hours on forty letters, and nothing in its own process can stop it. This
file is run as a script and imports nothing from jaxpar, which would take longer than its work.

It reads a JSON object with `pattern`, `texts` and `seconds`. It writes a line of JSON for the pattern (an object, with
`refused` where it cannot be used) and one for each text: what is matched, or null. An object with `refused` is the last
line where a text takes too much memory. It ends by SIGPROF where one of them takes longer.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys

MEMORY_BYTES = 2**30
TOO_LARGE = json.dumps({"refused": f"it takes more than {MEMORY_BYTES >> 30} GiB"})


def main() -> None:
    """Answer the request on the standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    seconds = request["seconds"]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        pattern = re.compile(request["pattern"])
    except MemoryError:
        print(TOO_LARGE)
        return
    except (re.error, OverflowError, RecursionError) as error:
        print(json.dumps({"refused": str(error) or type(error).__name__}))
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    print("{}", flush=True)
    for text in request["texts"]:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            line = json.dumps(first_match(pattern, text))
        except MemoryError:
            print(TOO_LARGE)
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


def first_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The text that the first group of the first match has, or all of the match where no group has one."""
    match = pattern.search(text)
    if match is None:
        return None
    return match[1] if pattern.groups and match[1] is not None else match[0]


if __name__ == "__main__":
    main()
