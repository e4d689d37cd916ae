"""Whether the rows of a step have room for its answers."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.data.opened import Data
from jaxpar.rl.prompts import PromptRows


def longest_prompt(data: Data) -> int:
    """Tokens of the longest prompt."""
    return max(rows.longest for rows in (data.train, data.validation) if isinstance(rows, PromptRows))


def positions_needed(config: Config, longest: int) -> int:
    """Tokens that a row may get to while answers to prompts of at most `longest` tokens are drawn."""
    # Conversations are continued together: by the most tokens that one of them may have left.
    return longest + config.rl.answer_tokens * (1 if config.rl.environment is None else 2)


def check_room(config: Config, data: Data) -> None:
    """Refuse rows that have no room for a step's answers. Raises `UserError`."""
    rl, sizes, model = config.rl, config.data, config.model
    longest = longest_prompt(data)
    each, answers = longest + rl.answer_tokens - 1, rl.prompts // rl.minibatches * rl.group
    if each > sizes.sequence_length:
        raise UserError(
            f"data.sequence_length: {sizes.sequence_length} has no room for a prompt of {longest} tokens and an "
            f"answer of {rl.answer_tokens} (rl.answer_tokens); expected at least {each}"
        )
    positions = positions_needed(config, longest)
    if model.position == "learned" and positions > model.max_positions:
        raise UserError(
            f"model.max_positions: {model.max_positions} learned positions are fewer than a prompt of {longest} "
            f"tokens and an answer of {rl.answer_tokens} (rl.answer_tokens) need, which are {positions}"
        )
    rows = -(-answers // (sizes.sequence_length // each))
    if rows > sizes.batch_size:
        raise UserError(
            f"data.batch_size: {sizes.batch_size} rows of {sizes.sequence_length} tokens may have no room for "
            f"{answers} answers (rl.prompts x rl.group / rl.minibatches) of up to {each} tokens with their prompts; "
            f"expected at least {rows}"
        )
