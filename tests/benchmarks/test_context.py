"""The benchmark of strategies, tried at a size that takes no time: what it reports, and not how long things take."""

import json

import pytest

from benchmarks.context import tiles
from benchmarks.context.__main__ import main, table
from benchmarks.context.strategies import ONE_DEVICE, Sizes, measure
from benchmarks.context.tiles import measure_tiles, tiles_table
from jaxpar.attention import CONTEXT_STRATEGIES
from jaxpar.attention.balance import imbalance, sequence_order, visible_pairs_per_rank
from pallas_kernels.masks import Mask


@pytest.mark.long
def test_reports_each_strategy_beside_one_device() -> None:
    sizes = Sizes(context=4, heads=2, kv_heads=1, head_dim=8, block=16)
    result = json.loads(json.dumps(measure(sizes, [64], ["auto", "contiguous"], rounds=1)))
    rows = {(row["strategy"], row["order"]): row for row in result["rows"]}
    assert {strategy for strategy, _ in rows} == {ONE_DEVICE, *(entry.name for entry in CONTEXT_STRATEGIES)}
    assert "2 query heads" in rows["ulysses", "-"]["refused"], "two heads are too few for four ranks"
    ring, contiguous = rows["ring", "zigzag"], rows["ring", "contiguous"]
    assert ring["imbalance"] == 0
    natural = visible_pairs_per_rank(Mask(), None, sequence_order("contiguous", 64, 4), 4)
    assert contiguous["imbalance"] == pytest.approx(imbalance(natural))
    keys = 2 * 64 // 4 * 8 * 4  # of k and v, in bytes
    assert ring["sent_bytes"] == {"forward": 3 * keys, "backward": 6 * keys}
    assert 0 < ring["argument_bytes"] < rows[ONE_DEVICE, "contiguous"]["argument_bytes"]
    assert ring["processor_ratio"] * rows[ONE_DEVICE, "contiguous"]["processor_s"]["median"] == pytest.approx(
        ring["processor_s"]["median"]
    )
    shown = table(result)
    assert "not the speed of GPUs" in shown and "refused: 2 query heads" in shown and "+0%" in shown


def test_a_length_that_does_not_divide_is_refused_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main(["--lengths", "100", "--context", "8"]) == 2
    assert "and 100 tokens are no multiple" in capsys.readouterr().err


@pytest.mark.long
def test_whole_steps_report_tiles_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    monkeypatch.setattr(tiles, "CASES", {"tiled loss": ("memory.loss_tiles=4",), "too many": ("nothing=1",)})
    small = ["model.layers=1", "model.embed=16", "model.mlp=16", "parallel.tensor=1", "parallel.context=1"]
    result = measure_tiles("configs/quickstart.yaml", [64], steps=1, warmup=1, overrides=small)
    measured, refused = result["rows"]
    assert measured["tokens_per_step"] == 64 and measured["step_time_s"] > 0
    assert "nothing" in refused["refused"]
    shown = tiles_table(result)
    assert "tiled loss" in shown and f"refused: {refused['refused']}" in shown
