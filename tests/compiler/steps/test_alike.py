"""Products and attention of a compiled step: each takes as long as that of its layout."""

from typing import Any

import pytest

from benchmarks.planner.compiled import laid_out
from jaxpar.compiler.program.costs.matmuls import Matmul
from jaxpar.cost.operations import SCORES_BLOCK, Device
from jaxpar.hardware.cluster import parse_cluster
from tests.compiler.inspected import inspected, wide

pytestmark = pytest.mark.long

ODD = {"layers": 2, "embed": 520, "mlp": 1112, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 1024}
"""Dims that are no multiples of tiles, nor of 64 numbers."""
INWARD = {(2048, 520, k) for k in (256, 128, 1112)}
"""The gradients of the input of queries, of keys or values, and of gate and up, which a layout takes as one product
with matrices side by side."""
FLASH = [("h100:1x1", "mosaic"), ("h100:1x1", "triton"), ("a100-80:1x1", "triton")]


@pytest.mark.parametrize(("cluster", "backend"), [*FLASH, ("h100:1x1", "xla")])
def test_a_program_and_its_layout_price_each_product_and_attention_alike(
    cluster: str, backend: str, monkeypatch: pytest.MonkeyPatch
):
    sections: dict[str, Any] = {"data": {"sequence_length": 1024, "batch_size": 2}, "memory": {"remat": "none"}}
    config = wide(model=ODD, attention={"backend": backend}, **sections)
    analysis, _ = inspected(config, cluster)
    layout, search = laid_out(config, parse_cluster(cluster))
    plain, priced = Device.matmul, dict[tuple[float, ...], float]()

    def matmul(device: Device, m: int, n: int, k: int, batch: int = 1, *rest: Any) -> float:
        priced[m, n, k, batch] = plain(device, m, n, k, batch, *rest)
        return priced[m, n, k, batch]

    with monkeypatch.context() as patched:
        patched.setattr(Device, "matmul", matmul)
        kinds = search.timer.step(layout).program.seconds_by_kind
    total: dict[str, float] = {"matmul": 0.0, "attention": 0.0}
    for cost in analysis.costs:
        for product in cost.products:
            seconds = analysis.timer.product(product)
            total[cost.kind] += seconds * cost.executions
            if not isinstance(product.shape, Matmul):
                continue
            shape = tuple(product.shape[:4])
            if (shape[:3] in INWARD and shape not in priced) or SCORES_BLOCK in shape:
                continue
            assert seconds == priced[shape], shape
    assert total["matmul"] == pytest.approx(kinds["matmuls"], rel=0.04), "but for the start and end of tiles in INWARD"
    if backend == "xla":  # the causal mask keeps some of three of four blocks; passes over scores are no products
        passes = 2 * analysis.timer.device.bytes_seconds(30.0 * 2 * 4 * 1024 * 1024 * 3 / 4)
        assert total["attention"] + passes == pytest.approx(kinds["attention"], rel=0.03)
    else:
        assert total["attention"] == pytest.approx(kinds["attention"], rel=1e-6)
