"""Tensors of a Hugging Face folder, in `safetensors` files, of which only the requested parts are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import (
    LONGEST_POINTER,
    LONGEST_WRITTEN,
    check_pointer,
    check_regular,
    read_text_file,
)
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named, printable, quoted
from jaxpar.interop.mapping.family import StoredTensor
from jaxpar.interop.mapping.form import Region

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
"""The dtypes that weights may have in a file, by their names there."""
_PICKLES = ("*.bin", "*.pt", "*.pth")

DIGEST_ROWS = 16
"""Rows of a matrix, at even distances, that its digest is of."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype


class TensorFiles:
    """The tensors of a folder, by name.

    Args:
        folder: with `model.safetensors`, or `model.safetensors.index.json` and its shards.
        options: `quantization_config`, of formats that read it.

    Raises:
        UserError: there are none, a shard is missing or damaged, or a tensor is of a dtype that weights do not have.
    """

    packed: Mapping[str, np.dtype] = {}
    """Further dtypes that tensors may have."""

    def __init__(self, folder: Path, options: Mapping[str, object] = MappingProxyType({})):
        self.folder = folder
        self._open: dict[Path, safe_open] = {}
        self.tensors: dict[str, Stored] = {}
        shards = _shards(folder)
        for file, listed in shards.items():
            self.tensors |= self._tensors_of(file, listed)

    def read(self, name: str, region: Region) -> np.ndarray:
        """Part of a tensor, in its dtype."""
        return self.read_stored(self.tensors[name].file, name, region)

    def read_stored(self, file: Path, name: str, region: Region) -> np.ndarray:
        """Part of a tensor as a file has it."""
        try:
            return self._file(file).get_slice(name)[region]
        except SafetensorError as error:
            raise UserError(f"{named(file)}: the tensor {quoted(name, 120)} cannot be read ({error})") from None

    def is_blank(self, name: str) -> bool:
        """Whether a tensor that a model lacks has no effect, as biases of 0 that a format gives each matrix."""
        return False

    def digest(self) -> str:
        """Digest of every tensor's name, dtype and shape, of vectors, and of `DIGEST_ROWS` rows of every matrix.

        Another training changes these; reading all of a large model would take minutes at every start.
        """
        hasher = sha256()
        for name, stored in sorted(self.tensors.items()):
            hasher.update(f"{name} {stored.dtype} {stored.shape}".encode())
            full_region = tuple(slice(0, size) for size in stored.shape)
            regions = [full_region]
            if len(full_region) > 1:
                rows = stored.shape[0]
                firsts = range(0, rows, max(1, rows // DIGEST_ROWS))
                regions = [(slice(first, first + 1), *full_region[1:]) for first in firsts]
            for region in regions:
                hasher.update(self.read(name, region).tobytes())
        return hasher.hexdigest()

    def _tensors_of(self, file: Path, listed: list[str] | None) -> Mapping[str, Stored]:
        tensors = {}
        opened = self._file(file)
        for name in opened.keys():  # noqa: SIM118 it is not a mapping
            part = opened.get_slice(name)
            dtypes = {**DTYPES, **self.packed}
            if part.get_dtype() not in dtypes:
                raise UserError(
                    f"{named(file)}: the tensor {quoted(name, 120)} is of dtype {part.get_dtype()}, which is not "
                    f"supported; expected one of {', '.join(dtypes)}"
                )
            tensors[name] = Stored(file, tuple(part.get_shape()), dtypes[part.get_dtype()])
        for name in tensors if listed is None else listed:
            if name not in tensors:
                raise UserError(f"{named(file)}: the tensor {quoted(name, 120)}, which {INDEX} lists in it, is missing")
        known = None if listed is None else set(listed)
        for name in tensors:
            if known is not None and name not in known:
                raise UserError(f"{named(file)}: the tensor {quoted(name, 120)} is in it, and {INDEX} does not list it")
        return tensors

    def _file(self, file: Path) -> safe_open:
        if file not in self._open:
            try:
                check_regular(file)
                self._open[file] = safe_open(file, framework="numpy")
            except SafetensorError as error:
                with file.open("rb") as opened:
                    check_pointer(opened.read(LONGEST_POINTER), file)
                raise UserError(f"{named(file)}: no whole safetensors file ({error})") from None
            except OSError as error:
                raise UserError(f"{named(file)}: cannot be read ({error.strerror or error})") from None
        return self._open[file]


class TensorWeights:
    """The weights of a model in tensors of files, read by name.

    Args:
        model: whose they are.
        tensors: that have them.
        files: of the tensors.
        names: the name there of each tensor.
    """

    def __init__(
        self, model: ModelConfig, tensors: Sequence[StoredTensor], files: TensorFiles, names: Mapping[str, str]
    ):
        self.model, self.tensors, self._files, self._names = model, list(tensors), files, dict(names)
        self._tensor_of = {
            (weight, tensor.layer, tensor.member): (tensor, index)
            for tensor in self.tensors
            for index, weight in enumerate(tensor.weights)
        }

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        if layers is None:
            return self._part(weight, None, region)
        return np.stack([self._part(weight, layer, region) for layer in layers])

    def _part(self, weight: str, layer: int | None, region: Region) -> np.ndarray:
        if (weight, layer, 0) not in self._tensor_of:
            return self._part_of_tensor((weight, layer, None), region)
        members = range(region[0].start, region[0].stop)
        return np.stack([self._part_of_tensor((weight, layer, member), region[1:]) for member in members])

    def _part_of_tensor(self, key: tuple[str, int | None, int | None], region: Region) -> np.ndarray:
        tensor, index = self._tensor_of[key]
        return tensor.laid.read(index, region, lambda lines: self._files.read(self._names[tensor.name], lines))


class RenamedFiles(TensorFiles):
    """Some tensors of a folder, under other names.

    Args:
        files: the folder.
        names: the name of each tensor there by its name here.
    """

    def __init__(self, files: TensorFiles, names: Mapping[str, str]):
        self._files, self.names = files, names
        self.tensors = {name: files.tensors[stored] for name, stored in names.items()}

    def read(self, name: str, region: Region) -> np.ndarray:
        return self._files.read(self.names[name], region)

    def full_tensor(self, stored: str) -> np.ndarray:
        """A tensor, by its name in the folder."""
        return self._files.read(stored, tuple(slice(0, size) for size in self._files.tensors[stored].shape))

    def is_blank(self, name: str) -> bool:
        return self._files.is_blank(self.names[name])


def has_tensors(folder: Path) -> bool:
    """Whether a folder has files of tensors, or their index."""
    return (folder / INDEX).exists() or (folder / SINGLE_FILE).exists()


def _shards(folder: Path) -> dict[Path, list[str] | None]:
    """The files of a folder, and the tensors that its index lists in each; None where there is no index."""
    if (folder / INDEX).exists():
        return dict(_listed(folder))
    if (folder / SINGLE_FILE).exists():
        return {folder / SINGLE_FILE: None}
    refuse_pickles(folder, SINGLE_FILE)
    raise UserError(f"{named(folder)}: it has neither {SINGLE_FILE} nor {INDEX}")


def refuse_pickles(folder: Path, wanted: str) -> None:
    """Raise `UserError` where a folder has pickles in place of the file `wanted`."""
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{named(folder)}: {printable(pickles[0])} is a pickle, which can run any code when it is read; expected "
            f"{wanted} (`save_pretrained` of transformers and PEFT writes it)"
        )


def _listed(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    file = folder / INDEX
    try:
        index = parse_json(read_text_file(file, LONGEST_WRITTEN), named(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(file)}: cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
    by_name = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(by_name, dict) or not all(isinstance(shard, str) for shard in by_name.values()):
        raise UserError(f"{named(file)}: weight_map is missing; expected the file of each tensor by name")
    names: dict[str, list[str]] = {}
    for name, shard in by_name.items():
        names.setdefault(shard, []).append(name)
    for shard, names_of_shard in names.items():
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(
                f"{named(file)}: weight_map names {quoted(shard, 120)}; expected a .safetensors file beside it"
            )
        if not (folder / shard).exists():
            raise UserError(f"{named(folder / shard)}: this shard, which {INDEX} names, is missing")
        yield folder / shard, names_of_shard
