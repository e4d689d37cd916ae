"""Units laid end to end as shards: which units a shard has is a function of the units alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.paths import flush_folder
from jaxpar.config.reading.text_file import check_regular, read_file
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.data.prepare.job import Job
from jaxpar.data.prepare.output.atomic_files import new_file, write_file
from jaxpar.data.prepare.output.tokenize import LENGTHS, LOSS_MASK, TOKENS, UnitRecord, UnitSplit, read_record
from jaxpar.data.prepare.workers import Report
from jaxpar.data.tokens.digests import DIGEST_BYTES, SummingFile, digest
from jaxpar.data.tokens.token_folder import npy_header
from jaxpar.data.tokens.token_index import SPLITS, SUMS, File, Shard

_READ_BYTES = 2**20


@dataclass(frozen=True)
class ShardPlan:
    """The units of a shard."""

    split: str
    index: int
    units: tuple[int, ...]
    """Units that have documents of the split."""

    @property
    def name(self) -> str:
        """Prefix of its file names."""
        return f"{self.split}-{self.index:05d}"


def plan_shards(records: Sequence[UnitRecord], shard_tokens: int) -> list[ShardPlan]:
    """The shards of all splits: each ends with the unit with which it reaches `shard_tokens` tokens."""
    plans: list[ShardPlan] = []
    for split in SPLITS:
        groups: list[tuple[int, ...]] = []
        units, tokens = [], 0
        for index, record in enumerate(records):
            if split in record.splits:
                units.append(index)
                tokens += record.splits[split].tokens
                if tokens >= shard_tokens:
                    groups.append(tuple(units))
                    units, tokens = [], 0
        groups += [tuple(units)] if units else []
        plans += [ShardPlan(split, index, members) for index, members in enumerate(groups)]
    return plans


def read_shard(job: Job, plan: ShardPlan) -> Shard | None:
    """The shard, if it is finished; None where it is not, or its record is damaged."""
    path = job.shard_folder / f"{plan.name}.json"
    try:
        plain = json.loads(read_file(path))
        written, shard = plain.pop("digest"), record_from_plain(Shard, plain, str(path))
    except (FileNotFoundError, ValueError, KeyError, AttributeError, RecursionError):
        return None
    return shard if written == digest(json.dumps(plain, sort_keys=True).encode()) else None


def shard_maker(job: Job, _report: Report) -> Callable[[ShardPlan], tuple[ShardPlan, Shard]]:
    """A function that makes the files of a shard, and then its record."""

    def make(plan: ShardPlan) -> tuple[ShardPlan, Shard]:
        parts = [(unit, _unit_split(job, unit, plan.split)) for unit in plan.units]
        starts = _make_starts(job, plan, parts)
        shard = Shard(
            tokens=_make_values(job, plan, parts, TOKENS),
            starts=starts,
            counted=None if job.chat is None else _make_values(job, plan, parts, LOSS_MASK),
            token_count=sum(part.tokens for _, part in parts),
            document_count=sum(part.documents for _, part in parts),
            text_bytes=sum(part.text_bytes for _, part in parts),
        )
        plain = asdict(shard)
        plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
        flush_folder(job.out)
        write_file(job.shard_folder / f"{plan.name}.json", json.dumps(plain, sort_keys=True).encode())
        flush_folder(job.shard_folder)  # From here on the units' tokens are not needed and are deleted.
        return plan, shard

    return make


def remove_units(job: Job, plan: ShardPlan) -> None:
    """Delete the tokens of units that a finished shard has."""
    for unit in plan.units:
        for kind in (TOKENS, LOSS_MASK, LENGTHS):
            job.unit_file(unit, f"{plan.split}.{kind}").unlink(missing_ok=True)


def _make_values(job: Job, plan: ShardPlan, parts: list[tuple[int, UnitSplit]], kind: str) -> File:
    """The file of a shard with a value for each token: the token, or whether it is counted."""
    name, dtype = (f"{plan.name}.npy", job.dtype) if kind == TOKENS else (f"{plan.name}.{kind}.npy", "uint8")
    header = npy_header(np.dtype(dtype).newbyteorder("<"), sum(part.tokens for _, part in parts))
    size = len(header)
    with new_file(job.out / name) as raw:
        file = SummingFile(raw)
        file.write(header)
        for unit, part in parts:
            for chunk in _content(job, unit, f"{plan.split}.{kind}", part.digests[kind]):
                file.write(chunk)
                size += len(chunk)
        sums = file.sums()
    write_file(job.out / (name + SUMS), sums)
    return File(name, size, digest(sums))


def _make_starts(job: Job, plan: ShardPlan, parts: list[tuple[int, UnitSplit]]) -> File:
    name = f"{plan.name}.starts.npy"
    raw = b"".join(
        chunk for unit, part in parts for chunk in _content(job, unit, f"{plan.split}.{LENGTHS}", part.digests[LENGTHS])
    )
    stops = np.cumsum(np.frombuffer(raw, "<i8"), dtype="<i8")
    starts = np.append(np.zeros(1, "<i8"), stops[:-1])
    content = npy_header(starts.dtype, len(starts)) + starts.tobytes()
    write_file(job.out / name, content)
    return File(name, len(content), digest(content))


def _unit_split(job: Job, unit: int, split: str) -> UnitSplit:
    record = read_record(job, unit)
    if record is None or split not in record.splits:
        raise UserError(f"{job.unit_file(unit, 'json')} was changed; give the same command again")
    return record.splits[split]


def _content(job: Job, unit: int, kind: str, wanted: str) -> Iterator[bytes]:
    """The bytes of a unit's file. A damaged unit loses its record, so that it is made once more."""
    path, hasher = job.unit_file(unit, kind), hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        check_regular(path)
        with open(path, "rb") as file:
            while chunk := file.read(_READ_BYTES):
                hasher.update(chunk)
                yield chunk
    except FileNotFoundError:
        hasher = None
    if hasher is None or hasher.hexdigest() != wanted:
        job.unit_file(unit, "json").unlink(missing_ok=True)
        raise UserError(f"{path} is missing or damaged, so its unit is dropped; the same command makes it again")
