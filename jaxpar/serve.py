"""`python -m jaxpar.serve --model MODEL`: a model behind the HTTP interface of OpenAI's completions."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive, report, seconds, size
from jaxpar.config import UserError
from jaxpar.config.install import install_command
from jaxpar.config.paths import is_host, is_name, user_path
from jaxpar.config.reading.key_file import read_key
from jaxpar.config.spelling import named, quoted
from jaxpar.serving.hosts import is_local

if TYPE_CHECKING:
    from jaxpar.generation.engine import Engine
    from jaxpar.serving.served_model import ServedModel
    from jaxpar.serving.weights import ServedWeights

LONGEST = 4096
"""Tokens of a row that a model which reads more has unless the user says otherwise."""
GRACE = 30
"""Seconds that answers may take once the server is to end."""
ROOM, RANK = 4, 16
"""Adapters that clients may load, and the largest rank of one, unless the user says otherwise."""
EPILOG = """\
Any client of OpenAI's interface can use it, with http://HOST:PORT/v1 as its address. docs/serving.md has more.
"""


@command()
def main(arguments: Sequence[str]) -> int:
    """Serve from the command line; the exit code: 0 ended by SIGTERM, 1 the engine failed, 2 a user error, 130
    interrupted."""
    options = _parser().parse_args(arguments)
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise UserError(f"{package} is not installed: {install_command('serve')}")
    key = None if options.api_key_file is None else read_key(options.api_key_file, "--api-key-file")
    if key is None and not is_local(options.host):
        raise UserError(f"--host {options.host}: other machines reach it; expected --api-key-file FILE with it")
    for name, folder in (("updates", options.updates), ("adapters", options.adapters)):
        if folder and key is None:
            raise UserError(
                f"--{name}: who reaches the server can change its weights; expected --api-key-file FILE with it"
            )
    _check_room(options)
    with _bound(options.host, options.port) as listening:
        return _serve(options, key, listening)


def _parser() -> Parser:
    parser = Parser("jaxpar.serve", "Serve a model by HTTP, as OpenAI's interface.", EPILOG)
    parser.add_model()
    parser.add_prefill()
    words = "in place of the tokenizer's; or one of its templates, by name"
    parser.add_argument("--chat-template", metavar="FILE|NAME|chatml", help=words)
    parser.add_argument("--name", metavar="NAME", help="of the model, for clients (default: the name of its folder)")
    words = "low-rank adapter of the model that clients may name; may be repeated (docs/serving.md)"
    parser.add_argument("--adapter", metavar="NAME=FOLDER", action="append", default=[], help=words)
    words = "folder of adapters that clients may load, replace and unload; may be repeated; needs a key"
    parser.add_argument("--adapters", metavar="FOLDER", type=Path, action="append", default=[], help=words)
    words = f"with --adapters, adapters that have room at once (default: {ROOM})"
    parser.add_argument("--max-adapters", metavar="N", type=positive, help=words)
    words = f"with --adapters, the largest rank of one (default: {RANK})"
    parser.add_argument("--adapter-rank", metavar="N", type=positive, help=words)
    where = parser.add_argument_group("where")
    where.add_argument("--host", metavar="HOST", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    where.add_argument("--port", metavar="N", type=int, default=8000, help="0 takes a free one (default: 8000)")
    where.add_argument("--api-key-file", metavar="FILE", type=Path, help="file with the key that clients must send")
    words = "folder in which a trainer puts new weights, and opens the requests that read them; needs a key"
    where.add_argument("--updates", metavar="FOLDER", type=Path, help=words)
    limits = parser.add_argument_group("limits")
    words = f"tokens of a row, prompt included (default: what the model reads, at most {LONGEST})"
    limits.add_argument("--length", metavar="N", type=positive, help=words)
    words = "answers that are drawn at once (default: 16)"
    limits.add_argument("--slots", metavar="N", type=positive, default=16, help=words)
    words = "tokens that the cache holds, of all answers together (default: slots x length); answers wait for room"
    limits.add_argument("--cache", metavar="N", type=positive, help=words)
    words = "answers that may wait for a slot; more are refused with 429 (default: 64)"
    limits.add_argument("--queue", metavar="N", type=positive, default=64, help=words)
    words = "a request may take so long, its wait included (default: 600)"
    limits.add_argument("--timeout", metavar="SECONDS", type=seconds, default=600.0, help=words)
    words = "largest body of a request (default: 4 MiB)"
    limits.add_argument("--body", metavar="SIZE", type=size, default=4 * 2**20, help=words)
    return parser


def _serve(options: argparse.Namespace, key: str | None, listening: socket.socket) -> int:
    import uvicorn

    from jaxpar.serving.adapters import Adapters
    from jaxpar.serving.app import Server
    from jaxpar.serving.updates import Updates
    from jaxpar.serving.worker import Worker

    model, engine, weights = _open(options)
    failed: list[bool] = []
    server: uvicorn.Server

    def on_failure() -> None:
        failed.append(True)
        server.should_exit = True

    worker = Worker(engine, engine.slots + options.queue, on_failure)
    updates = None if options.updates is None else Updates(_shared(options.updates), worker, weights.replace)
    adapters = None
    if options.adapters:
        folders = [user_path(one, "--adapters").resolve() for one in options.adapters]
        most = max(options.max_adapters or ROOM, len(model.adapters))
        adapters = Adapters(folders, most, weights, model, worker, options.timeout)
    score = weights.generator.scored
    app = Server(model, worker, key, options.timeout, options.body, score, updates, adapters).app()
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE, ws="none"
    )
    server = uvicorn.Server(settings)
    worker.start()
    host, port = listening.getsockname()[:2]
    print(
        f"{model.name} is served on http://{f'[{host}]' if ':' in host else host}:{port}/v1: {engine.slots} slots of "
        f"{model.length} tokens",
        flush=True,
    )
    # uvicorn raises the signal that ended it once more when all is done.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        worker.close()
    if failed:
        report(f"the engine failed ({type(worker.failure).__name__}: {worker.failure}): the server stopped.")
    return 1 if failed else 0


def _open(options: argparse.Namespace) -> tuple[ServedModel, Engine, ServedWeights]:
    """The model on the devices, and slots for it, whose programs for short prompts are compiled."""
    import jax

    from jaxpar.evaluation.context_length import context_length
    from jaxpar.generation.placed_model import open_model
    from jaxpar.generation.requests import Request
    from jaxpar.interop.sources.open_source import check_one_model
    from jaxpar.interop.sources.tokenizer import chat_encoder_of, text_of
    from jaxpar.serving.served_model import ServedModel
    from jaxpar.serving.weights import open_weights

    config, source = open_model(options.model, options.overrides, options.prefill_devices)
    if options.updates is not None:
        check_one_model(source, "--updates")
    if jax.process_count() > 1:
        raise UserError(f"a server is one process, and this job has {jax.process_count()}; expected one")
    length = context_length(source, options.length)
    if options.length is None:
        length = min(length, LONGEST)
    text = text_of(source, options.tokenizer, report, special_tokens=options.special_tokens)
    chat, why = None, ""
    try:
        chat, _ = chat_encoder_of(source, options.tokenizer, options.chat_template, report)
    except UserError as error:
        if options.chat_template is not None:
            raise
        why = str(error)
    name = options.name or Path(options.model).resolve().name
    folders = _adapters(options.adapter, name)
    room = (options.max_adapters or ROOM, options.adapter_rank or RANK) if options.adapters else None
    weights = open_weights(config, source, folders, options.prefill_devices, room)
    generator = weights.generator
    if options.cache is not None and options.cache < generator.least_cache(length):
        raise UserError(
            f"--cache {options.cache}: a row of --length {length} does not fit; expected at least "
            f"{generator.least_cache(length)}"
        )
    engine = generator.engine(options.slots, length, cache=options.cache)
    engine.add(Request([0], 2))
    while engine.busy:
        engine.step()
    indices = {name: index for index, name in enumerate(folders)}
    return ServedModel(name, generator.config.model, text, length, chat, why, indices), engine, weights


def _check_room(options: argparse.Namespace) -> None:
    """Raise `UserError` where clients can load no adapters as the flags ask."""
    if not options.adapters:
        for name, value in (("max-adapters", options.max_adapters), ("adapter-rank", options.adapter_rank)):
            if value is not None:
                raise UserError(f"--{name} {value}: clients can load no adapters; expected --adapters FOLDER with it")
        return
    from jaxpar.interop.adapters.adapter import LARGEST_RANK

    if (options.adapter_rank or RANK) > LARGEST_RANK:
        raise UserError(f"--adapter-rank {options.adapter_rank}: expected at most {LARGEST_RANK}")
    for folder in options.adapters:
        if not isdir(user_path(folder, "--adapters")):
            raise UserError(f"--adapters {named(folder)}: expected a folder that is there")


def _shared(folder: Path) -> Path:
    """The folder of new weights, which is there. Raises `UserError`."""
    path = user_path(folder, "--updates")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--updates {named(folder)}: it cannot be made ({error.strerror})") from None
    return path.resolve()


def _adapters(arguments: Sequence[str], model: str) -> dict[str, str]:
    """The folders of adapters by their names. Raises `UserError`."""
    folders: dict[str, str] = {}
    for one in arguments:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder and is_name(name)):
            raise UserError(f"--adapter {quoted(one)}: expected NAME=FOLDER")
        if name in folders or name == model:
            raise UserError(f"--adapter {quoted(one)}: there is another model with the name; expected a different one")
        folders[name] = folder
    return folders


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address. Raises `UserError` where there can be none."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port {port}: expected from 0 to {2**16 - 1}")
    if not host or not is_host(host):
        raise UserError(f"--host {quoted(host)}: expected an address, such as 127.0.0.1")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
