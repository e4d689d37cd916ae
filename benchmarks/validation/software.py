"""The software of a published run: the generation that its name stands for, and what the row states of it.

Software that is not known may do what any software does that is: `kinds_of` gives a row the mechanisms of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from benchmarks.validation.mechanisms import GENERATIONS, NEUTRAL
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.planner.measured_runs.mechanisms import stated_mechanisms

FRAMEWORKS = (
    ("llm-foundry", "llm-foundry"),
    ("Megatron-DeepSpeed", "megatron-deepspeed"),
    ("DeepSpeed", "deepspeed-zero3"),
    ("Megatron-Kwai", "kuaishou"),
    ("Megatron-LM (2021)", "megatron-2021"),
    ("Megatron-LM (2022)", "megatron-2022"),
    ("Megatron-LM 2024", "megatron-2024"),
    ("Megatron-LM", "megatron-2024"),
    ("Megatron-Core", "megatron-core"),
    ("torchtitan", "torchtitan"),
    ("jaxpar", "jaxpar"),
)
"""Prefixes of framework names, and the generation of each."""

KINDS = tuple(name for name in GENERATIONS if name != "jaxpar")
"""What software that is not known may be: neutral, or like any generation that was measured. All count the same."""

BEFORE_FLASH2 = ("megatron-2021", "megatron-2022", "megatron-deepspeed", "deepspeed-zero3")
"""Generations whose fused attention, where they have it, is the first FlashAttention."""


def generation(framework: str) -> str | None:
    """The generation of a framework by its name; None if it is unknown."""
    return next((name for start, name in FRAMEWORKS if framework.startswith(start)), None)


def mechanisms_of(
    row: Mapping[str, str], place: str = "", *, kind: str | None = None, hopper: bool = False
) -> Mechanisms:
    """The mechanisms of a row's software: those of its generation, changed by what the row states.

    Args:
        row: the cells by column.
        place: the row in words, for errors.
        kind: take the software to be of this generation, whatever its name.
        hopper: whether it ran on GPUs as new as an H100: software for them has fused attention, unless the row states
            that it has not.

    Raises:
        UserError: the column names no mechanism, or a value that it cannot have.
    """
    name = kind or generation(row["framework"]) or NEUTRAL
    does = GENERATIONS[name]
    if name.startswith("megatron") and row["precision"] == "fp16":
        does = replace(does, gradient_type="16-bit")
    flash = row["flash_attention"]
    if (flash == "1" or (hopper and not flash)) and does.attention == "scores":
        does = replace(does, attention="flash1" if name in BEFORE_FLASH2 else "flash2")
    return stated_mechanisms(does, row, place)


def kinds_of(row: Mapping[str, str], place: str, hopper: bool) -> dict[str, Mechanisms]:
    """The mechanisms of a row as software of each of `KINDS`; the other arguments are those of `mechanisms_of`."""
    return {kind: mechanisms_of(row, place, kind=kind, hopper=hopper) for kind in KINDS}


def stated(row: Mapping[str, str]) -> str:
    """What a row states of its software beside the name, as the column `mechanisms` has it."""
    own = [part.strip() for part in (row.get("mechanisms") or "").split(";") if part.strip()]
    return "; ".join([*([f"flash_attention={row['flash_attention']}"] if row["flash_attention"] else []), *own])


def switches(does: Mechanisms, beside: Mechanisms | None = None) -> str:
    """Mechanisms as the column `mechanisms` writes them; only those that differ from `beside`, where it is given."""
    shown = lambda value: str(int(value)) if isinstance(value, bool) else value
    own = {one.name: getattr(does, one.name) for one in fields(does)}
    return "; ".join(
        f"{name}={shown(value)}" for name, value in own.items() if beside is None or value != getattr(beside, name)
    )
