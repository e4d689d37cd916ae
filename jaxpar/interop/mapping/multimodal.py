"""Checkpoints of models that also take images: their text part is a model of a known family, and is read alone.

`config.json` has the keys of the text part under `text_config`. The text part's tensors have names that begin with
`language_model.` or `model.language_model.`; all others, but for the head, are those of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.quantization import QUANTIZATION

TEXT = "text_config"
_BEGINNINGS = ("model.language_model.", "language_model.model.")
"""Prefixes that replace a family's `model.` in files and in transformers."""
_HEADS = ("language_model.",)
"""Before the head in some files."""
_SHARED = (QUANTIZATION, "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")
"""Keys that stand beside `text_config`, and hold for it where it lacks them."""


@dataclass(frozen=True)
class Multimodal:
    """A kind of model with a text part."""

    tied: bool
    """Whether the head is the embedding where no key says so."""
    absent: Mapping[str, object] = field(default_factory=dict)
    """Keys that published files lack, with the values that transformers takes."""


MULTIMODAL: Mapping[str, Multimodal] = {
    "gemma3": Multimodal(True, {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "gemma3n": Multimodal(True),
    "gemma4": Multimodal(True),
    "mistral3": Multimodal(True),
    "llava": Multimodal(False),
    "llama4": Multimodal(False),
    "qwen3_5": Multimodal(False),
    "qwen3_5_moe": Multimodal(False),
}
"""Multimodal models by `model_type`. `text_config` names the family of the text part."""


def text_part(hf_config: HFConfig, architectures: Mapping[str, str]) -> HFConfig:
    """The `config.json` of the text part; `hf_config` itself where it is that of a text model.

    Args:
        hf_config: of the folder.
        architectures: the class of each family by `model_type`.
    """
    kind, text = MULTIMODAL.get(str(hf_config.get("model_type"))), hf_config.get(TEXT)
    if kind is None or not isinstance(text, dict):
        return hf_config
    stated = {key: value for key, value in text.items() if value is not None}
    beside = {key: value for key in _SHARED if (value := hf_config.get(key)) is not None}
    tied = hf_config.get("tie_word_embeddings", stated.get("tie_word_embeddings", kind.tied))
    named = {"architectures": [architectures[one]]} if (one := str(stated.get("model_type"))) in architectures else {}
    return HFConfig(hf_config.file, {**kind.absent, **beside, **text, "tie_word_embeddings": tied, **named})


def is_multimodal(hf_config: HFConfig) -> bool:
    """Whether a `config.json` is that of a model with a text part."""
    return str(hf_config.get("model_type")) in MULTIMODAL and isinstance(hf_config.get(TEXT), dict)


def names_in_files(folder: Path, stored: Iterable[str], prefix: str, head: str) -> dict[str, str]:
    """The tensors of the text part: the names that a text model's files have, and those here.

    Args:
        folder: of the files.
        stored: names of all tensors.
        prefix: the beginning of the family's names.
        head: the family's name of the head.

    Raises:
        UserError: two tensors have the same name there.
    """
    names = dict[str, str]()
    for name in stored:
        beginning = next((one for one in _BEGINNINGS if name.startswith(one)), None)
        if beginning is None and name not in (head, *(one + head for one in _HEADS)):
            continue
        of_text = head if beginning is None else prefix + name.removeprefix(beginning)
        if of_text in names:
            first, second = (quoted(one, 120) for one in sorted((names[of_text], name)))
            raise UserError(f"{named(folder)}: the tensors {first} and {second} are the same one of the text part")
        names[of_text] = name
    return names


def renamed(name: str, names: Mapping[str, str], prefix: str) -> str:
    """The name of a tensor of the text part in files whose `names` are known, though it may be new there."""
    if name in names:
        return names[name]
    beginning = next(one for one in _BEGINNINGS if any(stored.startswith(one) for stored in names.values()))
    if name.startswith(prefix):
        return beginning + name.removeprefix(prefix)
    return name if beginning == _BEGINNINGS[0] else _HEADS[0] + name
