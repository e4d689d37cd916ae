"""Calls to object stores by fsspec: each is tried again with growing pauses, and an error is one sentence.

Credentials are those that the library of a store finds for itself; no text of them is in a message.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.spelling import printable

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further try of a call, about."""
THREADS = 8
"""Files that are copied at once."""
BLOCK_BYTES = 32 * 2**20
"""Bytes of one read, or of a part of an upload to S3: a connection that is cut costs one of them."""
MOST_PARTS = 10_000
"""Parts of an upload that S3 takes."""

_LIBRARIES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "hf": ("huggingface_hub", "hf")}
"""Scheme to the module that fsspec needs for it, and the extra that installs it."""
_VERSIONS = ("ETag", "etag", "generation", "blob_id", "created")
"""Entries of a listing that change with the contents of a file; the first that a store has."""
_REFUSED = {
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "DefaultCredentialsError", "RefreshError", "GatedRepoError", "NoAuthTokenError", "LocalTokenNotFoundError",
}  # fmt: skip
"""Names of errors about credentials, in libraries that may not be installed."""
_MISSING = {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}
_CUT = {"JSONDecodeError", "UnicodeDecodeError"}
"""Names of errors about an answer that was cut."""
_REFUSED_WORDS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    " 401",
    " 403",
    "(403)",
)


class StoreError(UserError):
    """A store refused something, or failed at every try; one sentence with the URL and the reason."""


class StoredFile(NamedTuple):
    """A file of a listing."""

    size: int
    version: str
    """Changes with the contents."""


@dataclass
class Traffic:
    """Calls and bytes of this process so far."""

    retries: int = 0
    bytes: int = 0
    """Bytes of files that were copied, either way."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, retries: int = 0, bytes: int = 0) -> None:
        """Count from any thread."""
        with self._lock:
            self.retries += retries
            self.bytes += bytes


traffic = Traffic()


@cache
def _filesystem(scheme: str) -> Any:
    import fsspec

    module, extra = _LIBRARIES.get(scheme, (None, ""))
    if module is not None:
        try:
            importlib.import_module(module)
        except ImportError:
            raise StoreError(
                f"{scheme}:// needs the package {module}, which is not installed: {install_command(extra)}"
            ) from None
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "s3":  # the tries are counted here: the library makes one
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, "connect_timeout": 15, "read_timeout": 60}
    system = fsspec.filesystem(scheme, **options)
    if scheme == "s3":
        system.retries = 1
    return system


def persistent[T](url: str, call: Callable[[Any, str], T]) -> T:
    """The result of `call(filesystem, path)`, which is tried again after errors that may pass.

    Raises:
        StoreError: the store refused it, or it failed at every try.
    """
    scheme, _, path = url.partition("://")
    system = _filesystem(scheme)
    for pause in (*PAUSES_S, None):
        try:
            return call(system, path)
        except Exception as error:  # each library has its own
            reason = _final(error)
            if reason is None and pause is None:
                reason = f"failed {len(PAUSES_S) + 1} times, the last time with {_words(error)}"
            if reason is not None:
                raise StoreError(f"{printable(url)}: {reason}") from error
        traffic.add(retries=1)
        time.sleep(pause * random.uniform(0.5, 1.5) if pause else 0)
    raise AssertionError("the last try returns or raises")


def _final(error: Exception) -> str | None:
    """The reason why another try would fail as well; None where it may not."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if isinstance(error, StoreError):
        return text
    if isinstance(error, PermissionError) or names & _REFUSED or any(word in text for word in _REFUSED_WORDS):
        return "the store refused it: credentials are missing or wrong, or do not allow it (docs/object-stores.md)"
    if isinstance(error, FileNotFoundError) or names & _MISSING or "NoSuchBucket" in text:
        return "there is no such bucket, folder or file"
    if isinstance(error, ValueError) and not names & _CUT:
        return f"it is not accepted ({_words(error)})"
    return None


def _words(error: Exception) -> str:
    """The first line of an error, without the URL that signs a request."""
    lines = str(error).split("?")[0].strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0][:160])}" if lines else type(error).__name__


def listed(url: str) -> dict[str, StoredFile]:
    """The files under a URL by their names relative to it; of one file, its last name; empty where there is nothing.

    Raises:
        StoreError: as `persistent`.
    """

    def call(system: Any, path: str) -> dict[str, StoredFile]:
        try:
            entries = system.find(path, detail=True)
        except FileNotFoundError as error:
            if "ucket" in str(error):
                raise
            return {}
        # The Hub's file system lists names in a form of its own.
        resolved = system.resolve_path(path).unresolve() if hasattr(system, "resolve_path") else path
        root = system._strip_protocol(resolved).rstrip("/")
        return {
            name[len(root) :].lstrip("/") or root.rsplit("/", 1)[-1]: _stored(info)
            for name, info in entries.items()
            if info.get("type", "file") == "file" and not name.endswith("/")
        }

    return persistent(url, call)


def _stored(info: dict[str, Any]) -> StoredFile:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")
    return StoredFile(int(info["size"]), version)


def read(url: str, most: int | None = None) -> bytes | None:
    """A small file, or its first bytes, at most `most`; None where there is none. Raises `StoreError`."""

    def call(system: Any, path: str) -> bytes | None:
        try:
            return system.cat_file(path, end=most)
        except FileNotFoundError:
            return None

    return persistent(url, call)


def write(url: str, content: bytes) -> None:
    """Write a small file. Raises `StoreError`."""
    persistent(url, lambda system, path: system.pipe_file(path, content))


def remove(urls: Iterable[str]) -> None:
    """Remove files, one after the other. Raises `StoreError`."""

    def call(system: Any, path: str) -> None:
        try:
            system.rm_file(path)
        except FileNotFoundError:
            return

    for url in urls:
        persistent(url, call)


def download(url: str, size: int, target: Path, part: Path) -> None:
    """Copy a file to `target`, which appears with its full size. An earlier call's `part` of it is continued.

    Raises:
        StoreError: as `persistent`, or the file is shorter than its listing.
        OSError: the copy cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "ab") as file:
        while (start := file.tell()) < size:
            end = min(size, start + BLOCK_BYTES)
            block = persistent(url, lambda system, path: system.cat_file(path, start=start, end=end))  # noqa: B023
            if not block:
                raise StoreError(f"{printable(url)}: it changed while it was copied")
            file.write(block)
            traffic.add(bytes=len(block))
        file.flush()
        os.fsync(file.fileno())  # a later command trusts its size
    part.replace(target)


def upload_file(file: Path, url: str) -> None:
    """Upload a file, a large one in parts. Raises `StoreError`."""
    size = file.stat().st_size
    if url.startswith("s3://") and size > BLOCK_BYTES:
        _upload_parts(file, url, size)
    else:
        persistent(url, lambda system, path: system.put_file(str(file), path))
    traffic.add(bytes=size)


def _upload_parts(file: Path, url: str, size: int) -> None:
    """Upload a file to S3 in parts, each of which is tried again by itself: the library would begin the file again."""

    def call(method: str, **options: Any) -> Any:
        send = lambda system, path: system.call_s3(
            method, **dict(zip(("Bucket", "Key"), system.split_path(path), strict=False)), **options
        )
        return persistent(url, send)

    upload = call("create_multipart_upload")["UploadId"]
    try:
        block, parts = max(BLOCK_BYTES, -(-size // MOST_PARTS)), list[dict[str, Any]]()
        with open(file, "rb") as opened:
            while body := opened.read(block):
                part = {"PartNumber": len(parts) + 1}
                parts.append(part | {"ETag": call("upload_part", UploadId=upload, Body=body, **part)["ETag"]})
        call("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts})
    except BaseException:
        with suppress(StoreError):
            call("abort_multipart_upload", UploadId=upload)
        raise


def run_in_threads(work: Iterable[Callable[[], None]]) -> None:
    """Do work in threads; the first error is raised once all have ended. No further one begins after an error."""
    with ThreadPoolExecutor(THREADS, "store") as pool:
        futures = [pool.submit(one) for one in work]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
