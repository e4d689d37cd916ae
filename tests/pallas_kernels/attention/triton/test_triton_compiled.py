"""The Triton kernels compile for GPUs that are not at hand, inside a checked `shard_map`, and fit their registers."""

import pytest

from pallas_kernels.attention.triton.tiles import AMPERE, AMPERE_SHORT
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code

INSTRUCTION = {"a100-80": "mma", "h100": "wgmma", "b200": "tcgen05"}
PACKED = [(*widths, "packed", None) for widths in AMPERE]
LISTS = (128, 128, "packed, in lists", None)
SOFTCAPS = [(64, 64, "packed", 30.0), (128, 128, "packed", 50.0)]
FORMS = {
    "h100": [*PACKED, LISTS],
    "b200": [*PACKED, LISTS, *SOFTCAPS, (128, 128, "packed, sinks", None)],
    "a100-80": [*PACKED, *((*widths, "causal", None) for widths in AMPERE_SHORT)],
}
"""Each entry of the tables, with intervals of blocks; soft-caps and sinks, which cuDNN refuses, on Blackwell."""


@pytest.mark.matrix(quick=("h100-128-128-packed-None",), ci=2)
@pytest.mark.parametrize(
    ("gpu", "width", "value_width", "form", "softcap"), [(gpu, *form) for gpu, forms in FORMS.items() for form in forms]
)
def test_kernels_use_tensor_cores_and_spill_nothing(
    gpu: str, width: int, value_width: int, form: str, softcap: float | None
) -> None:
    child = "tests.pallas_kernels.attention.triton.gpu_attention:of_form"
    found = in_child(child, gpu, width, value_width, form, softcap)
    assert found.keys() == {f"attention_{kind}_{width}" for kind in ("forward", "dq", "dkv")}
    for name, resources in found.items():
        machine_code.check(resources)
        assert resources[INSTRUCTION[gpu]] > 0, (name, resources)
        if gpu == "h100":
            assert not any(resources["waits"]), "each product is waited for before anything uses it"
        assert resources["shared"] <= machine_code.SHARED[gpu], (name, resources)
