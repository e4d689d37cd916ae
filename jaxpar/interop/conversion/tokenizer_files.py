"""The tokenizer and the chat template of an export, in the files that `transformers` reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.data.chat.template import ADDITIONAL, CHAT, DEFAULT, template_beside, templates_beside
from jaxpar.data.tokens.token_index import INDEX, read_index
from jaxpar.data.tokens.tokenizer_file import TOKENIZER, load_tokenizer
from jaxpar.interop.conversion.new_folder import copy_beside
from jaxpar.interop.sources.open_source import Model
from jaxpar.interop.sources.tokenizer import training_folders

FILES = (
    TOKENIZER, CHAT, "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Names of the files of a tokenizer."""
TEMPLATE = "chat_template.jinja"
"""`transformers` takes the template of this file, whatever `tokenizer_config.json` has."""


def copy_tokenizer(origin: Path, folder: Path) -> None:
    """Copy the files of a tokenizer that a folder has, with its further chat templates."""
    for name in FILES:
        if (origin / name).exists():
            copy_beside(origin / name, folder / name)
    for file in sorted((origin / ADDITIONAL).glob("*.jinja")):
        (folder / ADDITIONAL).mkdir(exist_ok=True)
        copy_beside(file, folder / ADDITIONAL / file.name, origin)


@dataclass(frozen=True)
class TokenizerFiles:
    """The source of an export's tokenizer files."""

    origin: Path | None
    """The folder in Hugging Face's format that the weights came from."""
    data: Path | None
    """The token folder that the run was trained on."""

    def write(self, folder: Path) -> None:
        """Write them: those of the origin, with the template of the data; or those of the data."""
        if self.origin is not None:
            copy_tokenizer(self.origin, folder)
        if self.data is None:
            return
        template, before = template_beside(self.data), templates_beside(folder).get(DEFAULT)
        if not (folder / TOKENIZER).exists():
            copy_beside(self.data / TOKENIZER, folder / TOKENIZER)
        if not (folder / CHAT).exists():
            tokenizer = load_tokenizer(self.data / TOKENIZER, named(self.data / TOKENIZER))
            end = tokenizer.id_to_token(read_index(self.data).separator)
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
            settings |= {} if template is None else template.variables
            (folder / CHAT).write_text(json_text(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if template is not None and (before is None or before.source != template.source):
            (folder / TEMPLATE).write_text(template.source, encoding="utf-8")

    @property
    def end(self) -> int | None:
        """The token that ends a document of the data; None where the origin's own files name one."""
        return None if self.data is None or self.origin is not None else read_index(self.data).separator


def tokenizer_files(source: Model, origin: Path | None, report: Callable[[str], None]) -> TokenizerFiles:
    """The tokenizer of the folder that a model came from, or of the data that its run was trained on.

    Where both have one and the two differ, it is that of the data: the model has learned its tokens.
    """
    folders = [folder for folder in training_folders(source, report) if (folder / TOKENIZER).exists()]
    data = next((folder for folder in folders if (folder / INDEX).exists()), None)
    if data is None or origin is None or not (origin / TOKENIZER).exists():
        return TokenizerFiles(origin, data)
    if read_file(origin / TOKENIZER) == read_file(data / TOKENIZER):
        return TokenizerFiles(origin, data)
    report(f"The tokenizer is that of {named(data)}, which the run was trained on, not that of {named(origin)}.")
    return TokenizerFiles(None, data)
