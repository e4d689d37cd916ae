"""The tokenizer and the chat template of a MODEL: beside its weights, or of the data that its run was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.parts import DATA_SOURCES, implementation
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import named
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.template import CHAT, CHATML, chosen_template, template_beside
from jaxpar.data.sources import open_data
from jaxpar.data.tokens.tokenizer_file import TOKENIZER, load_tokenizer, tokenizer_path
from jaxpar.interop.sources.adapted import AdaptedWeights
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.model_text import ModelText, read_model_text
from jaxpar.interop.sources.open_source import Model, origin_of
from jaxpar.remote.cache import local_path

type Report = Callable[[str], None]


def text_of(source: Model, tokenizer: Path | None, report: Report, *, special_tokens: bool = False) -> ModelText:
    """Find a model's tokenizer: the named one, that of the folder it came from, or that of its run's data.

    Args:
        source: the model.
        tokenizer: a `tokenizer.json`, or its folder, in place of the model's.
        report: called with a sentence if a folder cannot be used.
        special_tokens: encode names of special tokens in a text as those tokens.

    Raises:
        UserError: none is known, or it cannot be read.
    """
    origin = origin_of(source, report)
    if tokenizer is not None:
        file = tokenizer_path(local_path(tokenizer, "--tokenizer"))
        return read_model_text(file, None if origin is None else origin.folder, special_tokens=special_tokens)
    if origin is not None and (origin.folder / TOKENIZER).exists():
        return read_model_text(origin.folder / TOKENIZER, origin.folder, special_tokens=special_tokens)
    if not isinstance(source, HFFolder) and source.origin is None:
        if (codec := DATA_SOURCES[source.config.data.source].codec) is not None:
            return _text_of_codec(source.config.data, codec, special_tokens)
        for folder in training_folders(source, report):
            if (folder / TOKENIZER).exists():
                return read_model_text(folder / TOKENIZER, None, special_tokens=special_tokens)
        run = source.config
        reads_folders = "path" in DATA_SOURCES[run.data.source].keys
        data = None if reads_folders else open_data(run.data, vocab=run.model.vocab, seed=run.run.seed)
        if data is not None and data.encode_start is not None and data.decode is not None:
            end_tokens = [] if data.separator is None else [data.separator]
            encode = partial(data.encode_start, special_tokens=special_tokens)
            return ModelText(
                data.decode, end_tokens, data.separator, encode, encode, {}, f"data.source={run.data.source}"
            )
    raise _unknown(source)


def _text_of_codec(data: DataConfig, codec: str, special_tokens: bool) -> ModelText:
    """The text of a source of data, from its `codec`."""
    made = implementation(codec)(data)
    if data.tokenizer is not None:
        folder = _tokenizer_folder(data.tokenizer)
        text = read_model_text(tokenizer_path(folder), folder, special_tokens=special_tokens)
        return replace(text, stops=[*dict.fromkeys((made.end, *text.stops))])
    return ModelText(made.decode, [made.end], made.end, made.encode, made.encode, {}, f"data.source={data.source}")


def chat_encoder_of(
    source: Model, tokenizer: Path | None, template: str | None, report: Report
) -> tuple[ChatEncoder, ModelText]:
    """The template of a model, with its tokenizer.

    Both are from one folder: that of the given tokenizer, of the conversations that the model's run was trained on, or
    the one that it came from; the first that has a template.

    Args:
        source: the model.
        tokenizer: a `tokenizer.json`, or its folder, in place of the model's.
        template: a file, or `chatml`, in place of the tokenizer's.
        report: called with a sentence if a folder cannot be used.

    Raises:
        UserError: there is no tokenizer, or no template.
    """
    if tokenizer is None:
        files = [folder / TOKENIZER for folder in tokenizer_folders(source, report) if (folder / TOKENIZER).exists()]
    else:
        files = [tokenizer_path(local_path(tokenizer, "--tokenizer"))]
    if not files:
        raise _unknown(source)
    if template is not None:
        chosen, file = chosen_template(template, files[0].parent), files[0]
    else:
        beside = ((template_beside(file.parent), file) for file in files)
        chosen, file = next(((one, file) for one, file in beside if one is not None), (None, files[0]))
    if chosen is None:
        raise UserError(
            f"--chat: no chat template is known for {named(source.path)}: there is none beside {named(file)}, in "
            f"chat_template.jinja or {CHAT}; expected --chat-template FILE, or --chat-template {CHATML} for a "
            "model that was trained with it"
        )
    text = read_model_text(file, file.parent)
    encoder = ChatEncoder(chosen, load_tokenizer(file, named(file)), date.today().isoformat())
    if template is not None:
        encoder.check_markers()
    return encoder, text


def _texts(names: Iterable[str]) -> list[str]:
    """The files of a token folder that are not tokens."""
    return [name for name in names if name.endswith((".json", ".jinja"))]


def training_folders(source: Model, report: Report) -> list[Path]:
    """The token folders that a model's own run was trained on; none for a model that is not a run's."""
    folders = []
    tuned = isinstance(source, AdaptedWeights) or source.origin is None
    if tuned and not isinstance(source, HFFolder):
        data = source.config.data  # A source that reads no folders has neither key.
        if DATA_SOURCES[data.source].codec is not None:
            return [] if data.tokenizer is None else [_tokenizer_folder(data.tokenizer)]
        paths = [*(data.sources or {}), *([] if data.path is None else [data.path])]
        for path in paths:
            try:
                folders.append(folder := local_path(path, "data.path", _texts))
            except UserError as error:  # the bucket may be gone, or not for this user
                report(f"The data of the run cannot be used for its tokenizer and template: {error}.")
                continue
            if not folder.exists():
                report(f"The data of the run is not at {named(folder)}, so its tokenizer and template are not used.")
    return folders


def _tokenizer_folder(tokenizer: str) -> Path:
    """The folder of `data.tokenizer`, which names that or a file in it."""
    path = local_path(tokenizer, "data.tokenizer")
    return path.parent if path.is_file() else path


def tokenizer_folders(source: Model, report: Report) -> list[Path]:
    """Folders that may have a model's tokenizer, the likeliest first."""
    folders = training_folders(source, report)
    origin = origin_of(source, report)
    return folders if origin is None else [*folders, origin.folder]


def _unknown(source: Model) -> UserError:
    return UserError(f"--tokenizer: no tokenizer is known for {named(source.path)}; expected a tokenizer.json")
