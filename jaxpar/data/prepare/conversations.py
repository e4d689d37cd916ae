"""Preparations of conversations: their template, and how long they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.template import CHAT, CHATML, ChatTemplate, chosen_template, template_beside
from jaxpar.data.prepare.options import Options
from jaxpar.data.tokens.token_index import SPLITS, Index

_SHOWN_LENGTHS = 4


def template_of(options: Options, tokenizer: Path) -> ChatTemplate:
    """The template of conversations. Raises `UserError` where there is none."""
    if options.chat_template is not None:
        return chosen_template(options.chat_template, tokenizer.parent)
    template = template_beside(tokenizer.parent)
    if template is None:
        raise UserError(
            f"--format {options.format}: there is no chat template beside --tokenizer {quoted(str(tokenizer))}, "
            f"in chat_template.jinja or {CHAT}; expected --chat-template FILE, or --chat-template {CHATML}"
        )
    return template


def check_template(encoder: ChatEncoder, chosen: bool, report: Callable[[str], None]) -> None:
    """Refuse, or report, what the template or the tokenizer lacks; `chosen` is whether the user chose the template."""
    if chosen:
        encoder.check_markers()
    elif markers := encoder.text_markers():
        report(f"The chat template writes {', '.join(markers)} as text: the tokenizer has no such tokens.")
    if words := encoder.masked_end_notice():
        report(words)
    encoder.close()


def lengths_text(folder: Path, index: Index) -> str:
    """A sentence about how many conversations, or pairs, are longer than a row of some lengths."""
    lengths = [
        np.diff(np.load(folder / shard.starts.name, allow_pickle=False), append=shard.token_count)
        for split in SPLITS
        for shard in index.shards(split)
    ]
    # The last token of a document takes no room in a row.
    sizes = (np.concatenate(lengths) - 1).reshape(-1, 2 if index.paired else 1).sum(1)
    longest = int(sizes.max())
    longer = {power: int((sizes > power).sum()) for power in (2**exponent for exponent in range(longest.bit_length()))}
    some = {power: count for power, count in longer.items() if 0 < count < len(sizes)}
    every = [power for power, count in longer.items() if count == len(sizes)]
    told = some or dict.fromkeys(every[-1:], len(sizes))
    shown = [f"more than {power:,}: {count:,}" for power, count in told.items()]
    listed = f" ({', '.join(shown[-_SHOWN_LENGTHS:])})" if shown else ""
    truncates = "" if index.answers else ", or truncates them (data.long_conversations)"
    return (
        f"The longest {'pair' if index.paired else 'conversation'} takes {longest:,} tokens of a row{listed}. A run "
        f"leaves out those longer than its data.sequence_length{truncates}."
    )
