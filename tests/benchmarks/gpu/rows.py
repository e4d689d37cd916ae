"""GPUs and rows of runs on them, as tests make them up."""

from typing import Any

H200 = {
    "device": "NVIDIA H200", "platform": "gpu", "compute_capability": "9.0", "processors": 132, "count": 1,
    "versions": {"jax": "1"}, "toolchain": {"jax": "1", "ptxas": "12.9.86"},
}  # fmt: skip
H20 = H200 | {"device": "NVIDIA H20", "processors": 78}


def attention_row(by: str, tflops: float, **more: Any) -> dict[str, Any]:
    row = {"part": "attention", "kind": "attention", "case": "causal", "seq": 8192, "width": 128, "way": "forward"}
    return row | {"heads": 16, "kv_heads": 16, "by": by, "tflops": tflops} | more
