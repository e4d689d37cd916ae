"""`python -m jaxpar.data.streaming.worker FD`: a process that tokenizes blocks until its pipe closes."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from jaxpar.config.errors import UserError
from jaxpar.data.streaming.block import BlockReader
from jaxpar.data.tokens.tokenizer_file import load_tokenizer


def main() -> None:
    """Receive the form of the tokens and tasks; answer with ("done", tokens), ("user", why) or ("bug", trace)."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process is one of several
    with suppress(EOFError, ConnectionError), Connection(int(sys.argv[1])) as pipe:  # the run has ended
        form = pipe.recv()
        reader = BlockReader(form, load_tokenizer(form.tokenizer, f"data.tokenizer: {form.tokenizer}"))
        while True:
            task = pipe.recv()
            try:
                answer = "done", reader.tokens(task)
            except UserError as error:
                answer = "user", str(error)
            except Exception:  # raised again by the run
                answer = "bug", traceback.format_exc()
            pipe.send(answer)


if __name__ == "__main__":
    main()
