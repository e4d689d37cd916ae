"""The parts of a model that takes images too, which an export of its text part carries on as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxpar.config.spelling import named
from jaxpar.interop.conversion.new_folder import copy_beside
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.multimodal import TEXT, is_multimodal
from jaxpar.interop.mapping.quantization import QUANTIZATION
from jaxpar.interop.sources.hf_folder import HFFolder, read_full_config
from jaxpar.interop.sources.source import Origin
from jaxpar.interop.sources.tensor_files import has_tensors

_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_DTYPES = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class Images:
    """A folder with text and images, from which the text came."""

    source: HFFolder

    def config(self, text: Mapping[str, object], changed: bool) -> dict[str, object]:
        """The `config.json` of all parts.

        Args:
            text: that of the text part, as a model of text.
            changed: whether the text part is another model than it was.
        """
        full = {key: value for key, value in read_full_config(self.source.path).values.items() if key != QUANTIZATION}
        before = full[TEXT]
        assert isinstance(before, dict), "the source was checked"
        inside = {key: value for key, value in text.items() if key != "architectures"} if changed else before
        dtype = next(text[key] for key in _DTYPES if key in text)
        inside = {key: dtype if key in _DTYPES else value for key, value in inside.items() if key != QUANTIZATION}
        tied = {"tie_word_embeddings": text["tie_word_embeddings"]} if changed else {}
        return {**full, "dtype" if "dtype" in full else "torch_dtype": dtype, **tied, TEXT: inside}

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors that are not of the text."""
        return {name: self.source.left_out_tensor(name) for name in self.source.left_out}

    def write_beside(self, folder: Path) -> None:
        """Copy the files that say how images are prepared."""
        for name in _FILES:
            if (self.source.path / name).exists():
                copy_beside(self.source.path / name, folder / name)


def images_of(origin: Origin | None, family: Family, report: Callable[[str], None]) -> Images | None:
    """The images that an export carries on; None if there are none, or they do not fit, which is reported."""
    if origin is None or not is_multimodal(read_full_config(origin.folder)):
        return None
    if family.name == origin.family.name and has_tensors(origin.folder):
        return Images(HFFolder(origin.folder))
    report(
        f"The tensors of images of {named(origin.folder)} are not there, or do not fit: this is the text part alone."
    )
    return None
