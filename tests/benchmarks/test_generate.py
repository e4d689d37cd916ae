"""Both sides of the generation benchmark continue the same prompts, and what is printed are their rates."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.generate import __main__ as benchmark
from benchmarks.generate import ragged
from benchmarks.generate.random_model import SMALL, write_random_model
from benchmarks.generate.sides import Jaxpar, Turn
from benchmarks.generate.turns import measured, table
from tests.sentences import refused_by_command


class Slower:
    """A side that repeats another one's tokens but the last of each row, in a time of its own."""

    def __init__(self, side: Jaxpar) -> None:
        self.side, self.began = side, 0

    def turn(self, prompts: Sequence[Sequence[int]], tokens: int) -> Turn:
        found = self.side.turn(prompts, tokens)
        self.began += 1
        return Turn(2.0, 4.0, [[*own[:-1], -1] for own in found.tokens])


def test_rates_and_ratios_are_of_the_same_prompts(tmp_path: Path):
    model = replace(SMALL, layers=1, embed=16, mlp=16, heads=8, kv_heads=8, vocab=32)
    assert write_random_model(tmp_path, model, 8) == 32 * 16 + 4 * 16 * 16 + 3 * 16 * 16 + 3 * 16
    ours = Jaxpar(tmp_path)
    other = Slower(ours)
    row = measured({"jaxpar": ours, "transformers": other}, 32, batch=2, prompt=5, tokens=4, rounds=2)
    assert other.began == 3, "the first turn is not counted"
    assert row["prompt"]["transformers"]["median"] == 5.0 and row["decode"]["transformers"]["median"] == 1.5
    assert row["same_tokens"] == 0.75
    ratio, rates = row["decode"]["ratio"], row["decode"]["jaxpar"]
    assert ratio["lowest"] == pytest.approx(rates["lowest"] / 1.5)
    alone = measured({"jaxpar": ours}, 32, batch=2, prompt=5, tokens=4, rounds=1)
    printed = table([row, alone])
    assert "batch 2, 4 new tokens" in printed and f"{ratio['median']:.2f} (" in printed
    assert "ratio" not in alone["prompt"] and "same_tokens" not in alone


def test_requests_of_unequal_lengths_are_drawn_by_each_side_and_slots_are_busier_than_in_batches(tmp_path: Path):
    write_random_model(tmp_path, replace(SMALL, layers=1, embed=16, mlp=16, heads=8, kv_heads=8, vocab=32), 64)
    generator, work = Jaxpar(tmp_path).generator, [ragged.Work([1, 2, 3], new) for new in (40, *[6] * 23)]
    slots = generator.engine(2, 64).slots  # a row for each tensor rank at least
    sides = {
        "jaxpar": ragged.ours(generator, slots, 64, False),
        "batches": ragged.ours(generator, slots, 64, True),
        "other": lambda work: ragged.Done(10.0, 20.0, [[-1] * one.tokens for one in work]),
    }
    row = ragged.measured(sides, work, rounds=2)
    assert row["tokens"] == 178 and row["rate"]["other"]["median"] == 17.8
    assert row["same_tokens"] == {"batches": 1.0, "other": 0.0}
    assert row["busy"]["jaxpar"] > row["busy"]["batches"], "39 steps, and 39 and 5 for each other batch"
    printed = ragged.table(row)
    assert "24 requests, 178 new tokens" in printed and f"{row['busy']['batches']:.0%}" in printed
    lengths = [(len(one.prompt), one.tokens) for one in ragged.drawn(200, 32)]
    assert min(lengths)[0] >= 16 and {10, 200} == {min(new for _, new in lengths), max(new for _, new in lengths)}


@pytest.mark.parametrize(
    ("arguments", "parts"), [(["--tokens", "1"], ("--tokens 1", "at least 2")), (["--threads", "4096"], ("4096",))]
)
def test_mistakes_are_one_sentence(arguments: list[str], parts: tuple[str, ...], capfd: pytest.CaptureFixture[str]):
    status = benchmark.main(arguments)
    printed = capfd.readouterr()
    refused_by_command(status, printed.out, printed.err, *parts)
