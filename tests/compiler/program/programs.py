"""Programs for the tests: compiled ones from `fixtures/`, and hand-written ones."""

import gzip
import json
from functools import lru_cache
from pathlib import Path

from jaxpar.compiler.program.hlo.parser import parse
from jaxpar.compiler.program.hlo.records import Module, Op
from jaxpar.compiler.program.memory.buffers import Buffers, parse_buffers

FIXTURES = Path(__file__).parent / "fixtures"
TINY = ("tiny-0.11.2", "tiny-0.12.0.1")
"""The same step, compiled by the oldest and the newest supported JAX."""


def text(name: str, part: str = "program") -> str:
    """A text of a fixture: `program`, `buffers`, `live`."""
    return gzip.decompress((FIXTURES / f"{name}.{part}.txt.gz").read_bytes()).decode()


def strictly(text: str) -> Module:
    """The module in `text`, of which every opcode is known; work is known where `notes` are empty after `costs` too."""
    made = parse(text)
    assert not made.unknown.notes()
    return made


@lru_cache
def compiled(name: str) -> Module:
    return strictly(text(name))


@lru_cache
def buffers(name: str) -> Buffers:
    return parse_buffers(text(name, "buffers"), text(name, "live"))


def memory(name: str) -> dict[str, int]:
    """The report of `memory_analysis` of the same compile."""
    return json.loads((FIXTURES / f"{name}.memory.json").read_text())


def module(entry: str, *computations: str, partitions: int = 1, tables: str = "") -> Module:
    """A module of hand-written computations: `entry` is the lines of the entry, others are whole."""
    return strictly(module_text(entry, *computations, partitions=partitions, tables=tables))


def module_text(entry: str, *computations: str, partitions: int = 1, tables: str = "") -> str:
    head = f"HloModule test, is_scheduled=true, num_partitions={partitions}\n\n{tables}\n"
    return head + "\n\n".join([*computations, computation("main", entry, entry=True)]) + "\n"


def computation(name: str, lines: str, *, entry: bool = False) -> str:
    """A computation of the given lines, the last of which is its root."""
    *body, root = [line.strip() for line in lines.strip().splitlines()]
    body = "".join(f"  {line}\n" for line in body)
    return f"{'ENTRY ' if entry else ''}%{name} (p: f32[]) -> f32[] {{\n{body}  ROOT {root}\n}}"


def loop(name: str, body: str, trips: int, state: str = "f32[]") -> str:
    """A `while` line over the result of `%start`, for the computations `body` and `{body}_condition`."""
    config = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return f"%{name} = {state} while(%start), condition=%{body}_condition, body=%{body}, {config}"


def condition(body: str, state: str = "f32[]") -> str:
    """The condition of a loop over `body`."""
    return computation(f"{body}_condition", f"%{body}_cp = {state} parameter(0)\n%{body}_go = pred[] constant(true)")


def only(module: Module, opcode: str) -> Op:
    """The one op with that opcode."""
    (found,) = [op for c in module.computations.values() for op in c.ops if op.opcode == opcode]
    return found
