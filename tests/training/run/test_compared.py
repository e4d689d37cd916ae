"""A run compares cuDNN's packed attention with plain XLA before its plan is final."""

from dataclasses import replace
from functools import partial

import pytest

from jaxpar.config.plan import Plan
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.training.run.agreed import compared_plan
from pallas_kernels.attention import comparison
from tests.sentences import refused
from tests.small_run import small

HOPPER = DescribedGPU.from_gpu(gpu_named("h100"))


@pytest.mark.parametrize(("why_not", "name"), [(None, "cudnn"), ("its packed layout differs", "xla")])
def test_a_plan_keeps_the_packed_layout_only_where_it_agrees(
    why_not: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(comparison, "_differences", {})
    monkeypatch.setattr(comparison, "compare", lambda request: asked.append(request) or why_not)
    config = small(model={"head_dim": 64}, precision={"compute": "bfloat16"}, parallel={"fsdp": 1})
    config = resolve_config(replace(config, data=replace(config.data, packed=True)), 1)
    make = partial(make_plan, config, HOPPER)
    before = make()
    assert before.attention["all"].name == "cudnn" and "compared with plain XLA" in before.attention["all"].reason
    for _ in range(2):
        plan = compared_plan(make, config, [HOPPER])
        assert plan.attention["all"].name == name and plan.attention["all"].rejected.get("cudnn") == why_not
    assert len(asked) == 1, "once in a process"

    def given() -> Plan:
        check_plan(before, config, HOPPER)
        return before

    if why_not is None:
        assert compared_plan(given, config, [HOPPER]) is before
    else:
        with refused("plan.attention", "'cudnn'", why_not):
            compared_plan(given, config, [HOPPER])


def test_nothing_is_compared_where_plain_xla_runs_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "compare", lambda request: pytest.fail("compared"))
    config = resolve_config(small(parallel={"fsdp": 1}), 1)
    assert compared_plan(partial(make_plan, config, HOPPER), config, [HOPPER]).attention["all"].name == "xla"
