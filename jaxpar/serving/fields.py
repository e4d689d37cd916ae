"""The fields of a request's body: what each may be, and what it is where it is missing or null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxpar.config.spelling import cut, did_you_mean, printable
from jaxpar.data.chat.messages import Message
from jaxpar.serving.refusals import Refusal, wrong

MOST_STOPS = 16
MOST_PROMPTS = 64
LONGEST_STOP = 256
LONGEST_NAME = 64
"""Letters of an unknown field up to which a known one is looked for that is like it."""


@dataclass(frozen=True)
class Setting:
    """A field of a request: its allowed values, its default and what is expected."""

    expected: str
    holds: Callable[[Any], bool]
    default: Any = None


def is_text(value: Any) -> bool:
    """Whether a value is a text that UTF-8 has."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(low: int, high: int, default: int | None = None) -> Setting:
    holds = lambda value: type(value) is int and low <= value <= high
    return Setting(f"a whole number from {low} to {high}", holds, default)


def _real(low: float, high: float, default: float) -> Setting:
    """A number from `low` to `high`."""
    holds = lambda value: type(value) in (int, float) and math.isfinite(value) and low <= value <= high
    return Setting(f"a number from {low:g} to {high:g}", holds, default)


def _single_value(value: Any) -> Setting:
    """A field of OpenAI's that has one value here."""
    return Setting(
        f"{json.dumps(value, allow_nan=False)}, for nothing else is supported", lambda other: other == value, value
    )


def _is_prompt(value: Any) -> bool:
    """Whether a value is a text, tokens, or a list of one of them."""
    tokens = lambda each: isinstance(each, list) and bool(each) and all(type(one) is int for one in each)
    if (is_text(value) and value) or tokens(value):
        return True
    if not isinstance(value, list) or not 0 < len(value) <= MOST_PROMPTS:
        return False
    return all(is_text(each) and each for each in value) or all(map(tokens, value))


def _is_stop(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return len(texts) <= MOST_STOPS and all(is_text(one) and 0 < len(one) <= LONGEST_STOP for one in texts)


FLAG = Setting("true or false", lambda value: type(value) is bool, False)
TEXT = Setting("a text", is_text)
_ZERO = Setting(
    "0, the log-probabilities of the tokens themselves, for no others are reported",
    lambda value: type(value) is int and value == 0,
)
COMMON = {
    "model": Setting("the name of the model", is_text),
    "temperature": _real(0, 100, 1.0),
    "top_p": Setting("a number above 0, at most 1", lambda value: type(value) in (int, float) and 0 < value <= 1, 1.0),
    "n": _integer(1, 64, 1),
    "stream": FLAG,
    "stream_options": Setting(
        'an object with `include_usage`, as {"include_usage": true}',
        lambda value: isinstance(value, dict) and all(
            name == "include_usage" and type(each) is bool for name, each in value.items()
        ),
    ),
    "stop": Setting(
        f"a text, or a list of at most {MOST_STOPS}, none of them empty or longer than {LONGEST_STOP} letters", _is_stop
    ),
    "seed": _integer(-(2**63), 2**63 - 1),
    "user": TEXT,
    "top_k": _integer(-1, 2**31 - 1, 0),
    "min_p": _real(0, 1, 0.0),
    "repetition_penalty": Setting(
        "a number above 0, at most 100", lambda value: type(value) in (int, float) and 0 < value <= 100, 1.0
    ),
    "stop_token_ids": Setting(
        f"a list of at most {MOST_STOPS} token ids",
        lambda value: isinstance(value, list) and len(value) <= MOST_STOPS and all(type(one) is int for one in value),
    ),
    "ignore_eos": FLAG,
    "presence_penalty": _single_value(0),
    "frequency_penalty": _single_value(0),
    "logit_bias": _single_value({}),
}  # fmt: skip
COMPLETION = COMMON | {
    "prompt": Setting(
        f"a text, token ids, or a list of one of them (at most {MOST_PROMPTS}), none of them empty", _is_prompt
    ),
    "max_tokens": _integer(1, 2**31 - 1, 16),
    "logprobs": _ZERO,
    "prompt_logprobs": _ZERO,
    "return_token_ids": FLAG,
    "skip_special_tokens": _single_value(False),
    "echo": _single_value(False),
    "best_of": _single_value(1),
    "suffix": _single_value(""),
}
CHAT = COMMON | {
    "messages": Setting("a list of messages, each an object with the texts `role` and `content`", lambda value: True),
    "max_tokens": _integer(1, 2**31 - 1),
    "max_completion_tokens": _integer(1, 2**31 - 1),
    "logprobs": FLAG,
    "top_logprobs": _single_value(0),
}

RELOAD = {
    "method": Setting("'reload_weights', for nothing else is supported", lambda value: value == "reload_weights"),
    "args": _single_value([]),
    "kwargs": Setting(
        "an object with `weights_path` alone",
        lambda value: isinstance(value, dict) and value.keys() <= {"weights_path"},
        {},
    ),
    "timeout": _single_value(None),
}
LOAD_ADAPTER = {
    "lora_name": Setting("a name for the adapter", is_text),
    "lora_path": Setting("a folder in that of --adapters", is_text),
    "load_inplace": FLAG,
    "is_3d_lora_weight": _single_value(False),
}
UNLOAD_ADAPTER = {"lora_name": LOAD_ADAPTER["lora_name"], "lora_int_id": _single_value(None)}
PAUSE = {
    "mode": Setting("wait, for nothing else is supported", lambda value: value == "wait"),
    "clear_cache": Setting("true, for nothing else is supported", lambda value: value.lower() == "true"),
}
"""Parameters of the query. Answers to different requests share nothing in the cache."""


def object_of(body: bytes) -> dict[str, Any]:
    """The object of a body in JSON. Raises `Refusal`."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        values = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"body: it is not JSON ({error}); expected a JSON object") from None
    if not isinstance(values, dict):
        raise wrong("body", values, "a JSON object")
    return values


def fields_of(body: bytes, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The value of each known field. Raises `Refusal`."""
    return checked(object_of(body), known)


def checked(values: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """The value of each known field. Raises `Refusal`."""
    for name, value in values.items():
        if name not in known:
            near = did_you_mean(name, known) if len(name) <= LONGEST_NAME else ""
            shown = printable(cut(name, 60))
            expected = near or f"; expected {f'one of {", ".join(known)}' if known else 'none'}"
            raise Refusal(400, f"{shown}: this endpoint has no such field{expected}", shown)
        if value is not None and not known[name].holds(value):
            raise wrong(name, value, known[name].expected)
    set_by_user = {name: value for name, value in values.items() if value is not None}
    return {name: setting.default for name, setting in known.items()} | set_by_user


def messages_of(value: Any) -> list[Message]:
    """Messages whose contents are texts. Raises `Refusal`."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", value, CHAT["messages"].expected)
    return [_message(f"messages[{index}]", each) for index, each in enumerate(value)]


def _message(name: str, value: Any) -> Message:
    if not isinstance(value, dict) or not is_text(value.get("role")):
        raise wrong(name, value, "an object with the texts `role` and `content`")
    content = value.get("content")
    if isinstance(content, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in content):
        texts = [one.get("text") for one in content]
        content = "".join(texts) if all(map(is_text, texts)) else None  # pyright: ignore[reportArgumentType]
    if not is_text(content):
        raise wrong(f"{name}.content", value.get("content"), "a text, or a list of parts of the type `text`")
    return {"role": value["role"], "content": content}
