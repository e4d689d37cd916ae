"""The Triton kernels compile for GPUs that are not at hand, inside a checked `shard_map`, and fit their registers."""

import pytest

from pallas_kernels.attention.triton.tiles import AMPERE, AMPERE_SHORT
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code

INSTRUCTION = {"a100-80": "mma", "h100": "wgmma", "b200": "tcgen05"}
PACKED = [(*widths, "packed") for widths in AMPERE]
FORMS = {
    "h100": [*PACKED, (128, 128, "packed, in lists")],
    "b200": [*PACKED, (128, 128, "packed, in lists")],
    "a100-80": [*PACKED, *((*widths, "causal") for widths in AMPERE_SHORT)],
}
"""Each entry of the tables, with intervals of blocks."""


@pytest.mark.matrix(quick=("h100-128-128-packed",), ci=2)
@pytest.mark.parametrize(
    ("gpu", "width", "value_width", "form"), [(gpu, *form) for gpu, forms in FORMS.items() for form in forms]
)
def test_kernels_use_tensor_cores_and_spill_nothing(gpu: str, width: int, value_width: int, form: str) -> None:
    [found] = in_child("tests.pallas_kernels.attention.triton.gpu_attention:kernels", gpu, (width, value_width, form))
    assert found.keys() == {f"attention_{kind}_{width}" for kind in ("forward", "dq", "dkv")}
    for name, resources in found.items():
        machine_code.check(resources)
        assert resources[INSTRUCTION[gpu]] > 0, (name, resources)
        assert not any(resources["waits"]), "each product is waited for before anything uses it"
        assert resources["shared"] <= machine_code.SHARED[gpu], (name, resources)
