"""Layouts in which matrices with factors are compared with one device: of LoRA, and of products of two."""

from typing import Any

from jaxpar.config.schema.model import Pattern

KINDS: dict[str, Any] = {
    "layers": 4,
    "kinds": {"local": {"window": 5}, "wide": {"mlp": 64, "activation": "gelu", "mlp_bias": True}},
    "pattern": Pattern(unit=("local", "wide")),
}
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "fsdp, tensor and context": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2}},
    "key heads that tensor ranks share": {"parallel": {"tensor": 8}, "model": {"kv_heads": 2}},
    "whole weights": {"parallel": {"fsdp": 4, "zero": 0, "microbatches": 2}, "model": {"tied": True}},
    "sharded state, in tiles": {
        "parallel": {"fsdp": 2, "tensor": 2, "zero": 1}, "memory": {"mlp_tiles": 3, "loss_tiles": 2}
    },
    "sharded gradients, all recomputed": {"parallel": {"fsdp": 4, "zero": 2}, "memory": {"remat": "full"}},
    "stages": {"parallel": {"pipe": 2, "fsdp": 2, "tensor": 2, "microbatches": 4}},
    "kinds, interleaved": {
        "parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2, "schedule": "interleaved", "virtual_stages": 2},
        "model": KINDS,
    },
}  # fmt: skip
