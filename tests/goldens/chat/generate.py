"""Makes a tokenizer with a chat template that fits the goldens' vocabulary of 61, and conversations to train on.

Run from the repository's root:

    python -m tests.goldens.chat.generate

The tokenizer has a token for each of 58 characters, and three special ones.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n.,?!'-:+=()/*;\"_&%@#"
END, BEGIN_TURN, END_TURN = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, without blocks that mark what the assistant says."""

CAPITALS = {
    "france": "paris", "italy": "rome", "spain": "madrid", "japan": "tokyo", "norway": "oslo", "peru": "lima",
    "egypt": "cairo", "kenya": "nairobi",
}  # fmt: skip


def tokenizer() -> Any:
    """A token for each letter."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    made: Any = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(SPECIAL))
    return made


def conversations() -> list[dict[str, Any]]:
    """Questions and answers, in one turn or two."""
    names = list(CAPITALS)
    found: list[dict[str, Any]] = [
        {"prompt": f"capital of {name}?", "completion": f"{CAPITALS[name]}."} for name in names
    ]
    for name, after in zip(names, names[1:] + names[:1], strict=True):
        turns = [("user", f"capital of {name}?"), ("assistant", f"{CAPITALS[name]}.")]
        turns += [("user", f"and of {after}?"), ("assistant", f"{CAPITALS[after]}.")]
        found.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return found


def main() -> None:
    """Write the files."""
    assert len(set(LETTERS)) == 58, "with the special tokens 61"
    (FOLDER / "tokenizer.json").write_text(tokenizer().to_str(pretty=True) + "\n")
    config = {"chat_template": TEMPLATE, "eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    lines = [json.dumps(each) for each in conversations()]
    (FOLDER / "conversations.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
