"""Where cuDNN is not installed, a fused kernel of ours is compiled in its place, for each kind of layers."""

from typing import Any

import pytest

from jaxpar.compiler import stand_in
from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.stand_in import attention_of, compilable
from jaxpar.config.schema.model import Pattern
from jaxpar.hardware.cluster import parse_cluster
from tests.compiler.inspected import wide


class Hopper:
    platform, device_kind, compute_capability = "gpu", "NVIDIA H100 80GB HBM3", "9.0"


class Ampere:
    platform, device_kind, compute_capability = "gpu", "NVIDIA A100-SXM4-80GB", "8.0"


GPUS = {"h100:1x8": Hopper(), "a100-80:1x8": Ampere()}


def planned(cluster: str, head_dim: int = 64, **model: Any) -> tuple[Any, Any]:
    model = {"embed": 128, "heads": 2, "kv_heads": 2, "head_dim": head_dim, **model}
    config = wide(
        model=model, parallel={"fsdp": 8}, attention={"backend": "auto"}, data={"packed": False, "batch_size": 16}
    )
    config, plan = plan_for(config, parse_cluster(cluster))
    assert "cudnn" in {choice.name for choice in plan.attention.values()}
    return config, plan


@pytest.fixture(autouse=True)
def no_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "has_cudnn", lambda release: False)


@pytest.mark.parametrize(
    ("cluster", "head_dim", "name"), [("h100:1x8", 64, "mosaic"), ("a100-80:1x8", 64, "triton"), ("h100:1x8", 8, "xla")]
)
def test_a_fused_kernel_is_preferred(cluster: str, head_dim: int, name: str) -> None:
    config, plan = planned(cluster, head_dim)
    compiled, notes = compilable(config, plan, GPUS[cluster], "12")
    assert compiled.attention["all"].name == name
    assert len(notes) == 1 and "cudnn" in notes[0] and f"{name}" in notes[0].lower()
    assert (attention_of(plan), attention_of(compiled)) == ("cudnn", name)


def test_kinds_of_layers_without_cudnn_keep_their_own() -> None:
    kinds = {"global": {}, "capped": {"attention_softcap": 30.0}}
    config, plan = planned("h100:1x8", kinds=kinds, pattern=Pattern(unit=("global", "capped")))
    before = {kind: choice.name for kind, choice in plan.attention.items()}
    assert before["global"] == "cudnn" != before["capped"]
    compiled, notes = compilable(config, plan, GPUS["h100:1x8"], "12")
    assert {kind: choice.name for kind, choice in compiled.attention.items()} == {**before, "global": "mosaic"}
    assert len(notes) == 1 and attention_of(plan) is None
