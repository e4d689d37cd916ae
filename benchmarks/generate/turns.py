"""Both sides in turns, and their tokens per second."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.generate.sides import Side, Turn
from benchmarks.turns import spread

PHASES = ("prompt", "decode")


def measured(
    sides: Mapping[str, Side], vocab: int, batch: int, prompt: int, tokens: int, rounds: int
) -> dict[str, Any]:
    """Tokens per second of each side in the prompt and after it, and ratios of the sides within each round.

    The first turn of each side compiles and is not counted; after each round another side begins.

    Returns:
        `prompt` and `decode`: for each side the tokens per second {median, lowest, highest}, and with two sides
        `ratio`, first to second; `same_tokens`: the share of tokens that both drew.
    """
    draw, turns = np.random.default_rng(batch), {name: list[Turn]() for name in sides}
    prompts = draw.integers(0, vocab, (batch, prompt)).tolist()
    for number in range(rounds + 1):
        names = list(sides)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turns[name].append(sides[name].turn(prompts, tokens))
    # The first new token is counted with the prompt.
    work = {"prompt": batch * prompt, "decode": batch * (tokens - 1)}
    row: dict[str, Any] = {"batch": batch, "prompt_tokens": prompt, "new_tokens": tokens, "rounds": rounds}
    for phase in PHASES:
        rates = {name: [work[phase] / getattr(one, phase) for one in own[1:]] for name, own in turns.items()}
        row[phase] = {name: spread(own) for name, own in rates.items()}
        if len(rates) == 2:
            row[phase]["ratio"] = spread([ours / other for ours, other in zip(*rates.values(), strict=True)])
    first, *others = ([token for own in side[0].tokens for token in own] for side in turns.values())
    for other in others:
        row["same_tokens"] = statistics.mean(a == b for a, b in zip(first, other, strict=True))
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for people."""
    lines = [f"{'':34}{'jaxpar':>12}{'transformers':>14}   ratio"]
    for row in rows:
        for phase in PHASES:
            own = row[phase]
            other = f"{own['transformers']['median']:14,.0f}" if "transformers" in own else f"{'-':>14}"
            ratio = own.get("ratio")
            ratio = (
                "" if ratio is None else f"   {ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            )
            size = row["prompt_tokens"] if phase == "prompt" else row["new_tokens"]
            name = f"batch {row['batch']}, {size} {'tokens of a prompt' if phase == 'prompt' else 'new tokens'}"
            lines.append(f"{name:34}{own['jaxpar']['median']:12,.0f}{other}{ratio}")
    return "\n".join(lines)
