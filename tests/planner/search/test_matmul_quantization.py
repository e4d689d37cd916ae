"""Times of layouts in FP8: against programs that were compiled for GPUs, and what must follow from the recipe."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.config import Config, load_config
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.matmul_formats import group_names
from jaxpar.layout.choices.matmul_quantization import matmul_quantization
from jaxpar.planner.planning import planned_config
from jaxpar.planner.step_time.model import StepTime, step_time
from jaxpar.planner.step_time.update import update_of
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused

FULL = Layout(fsdp=8, zero=3, remat="full")
KEPT = replace(FULL, remat="none")


@cache
def config_of(name: str, *options: str) -> Config:
    return planned_config(load_config(f"configs/{name}.yaml", [*options]))


def quantized(config: Config, layout: Layout, cluster: str) -> Layout:
    """The layout with the codes of a configuration."""
    gpu, rows = parse_cluster(cluster).gpu, -(-config.model.layers // (layout.pipe * layout.virtual_stages))
    offload = "host" if layout.optimizer_offload else "none"
    chunks = layout.pipe * layout.virtual_stages
    return replace(layout, matmul_quantization=matmul_quantization(config, gpu, offload, None, ("all",) * rows, chunks))


def timed(layout: Layout, *options: str, name: str = "llama3_8b", cluster: str = "h100:1x8") -> StepTime:
    config = config_of(name, *options)
    return step_time(
        config.model, config.data.sequence_length, config.data.batch_size, quantized(config, layout, cluster),
        parse_cluster(cluster), update=update_of(config),
    )  # fmt: skip


def recipe(name: str, **other: Any) -> tuple[str, ...]:
    """Overrides of a recipe, with other options than usual or all of them."""
    all_of = other.pop("matmul_options", None)
    whole = () if all_of is None else (f"precision.matmul_options={all_of}",)
    return (
        f"precision.matmul={name}",
        *whole,
        *(f"precision.matmul_options.{key}={value}" for key, value in other.items()),
    )


def computed(time: StepTime) -> float:
    """Seconds of kernels alone."""
    return sum(time.breakdown[part] for part in ("matmuls", "attention", "other", "recomputation", "optimizer"))


CUT = ("model.layers=4",)
COMPILED = {
    "8b": (KEPT, (), 6.84),
    "8b, current": (KEPT, recipe("fp8_current"), 5.50),
    "8b, 4 layers": (FULL, CUT, 1.403),
    "8b, 4 layers, tiles by xla": (FULL, (*recipe("fp8_block", backend="xla"), *CUT), 1.446),
    "8b, 4 layers, tiles by the kernel": (FULL, (*recipe("fp8_block", backend="mosaic"), *CUT), 1.315),
}
"""Layout, options, seconds of compute."""


@pytest.mark.parametrize("case", COMPILED)
def test_kernels_take_what_those_of_the_compiled_program_do(case: str):
    layout, options, seconds = COMPILED[case]
    assert computed(timed(layout, *options)) == pytest.approx(seconds, rel=0.07)


@pytest.mark.parametrize("of", ["fp8_delayed", "fp8_current"])
def test_excepting_more_is_never_faster(of: str):
    """Of matrices as large as these, each of which gains more than its passes cost."""
    names = group_names(config_of("llama3_8b").model)
    parts = [", ".join(names[:number]) for number in range(len(names))]
    excepted = [f"{{exclude: [{some}], first_layers: 0, last_layers: 0}}" for some in parts]
    excepted += [f"{{exclude: [], first_layers: {n}, last_layers: {n}}}" for n in (1, 4, 15)]
    times = [timed(KEPT, *recipe(of, matmul_options=each)) for each in excepted]
    seconds = [time.seconds for time in times]
    for own in (seconds[: len(parts)], [seconds[0], *seconds[len(parts) :]]):
        assert own == sorted(set(own))


def test_delayed_scaling_is_faster_than_scales_of_the_tensors_themselves():
    for layout, cluster in ((Layout(), "h100:1x1"), (KEPT, "h100:1x8"), (replace(KEPT, fsdp=64), "h100:8x8")):
        delayed, current = (timed(layout, *recipe(of), cluster=cluster) for of in ("fp8_delayed", "fp8_current"))
        assert delayed.seconds < current.seconds
        assert delayed.breakdown["scales"] == 0
        assert (current.breakdown["scales"] > 0) == (layout.devices > 1)
    again, once = (timed(replace(KEPT, remat=remat), *recipe("fp8_current")) for remat in ("full", "none"))
    assert again.breakdown["scales"] == once.breakdown["scales"], "scales are kept"


def test_tiles_by_xla_are_no_faster_than_without_fp8_and_by_the_kernel_they_are():
    plain, default, by_xla, by_kernel = (
        timed(KEPT, *options)
        for options in ((), *(recipe("fp8_block", backend=name) for name in ("auto", "xla", "mosaic")))
    )
    assert by_xla.breakdown["matmuls"] == pytest.approx(plain.breakdown["matmuls"])
    assert by_xla.seconds > plain.seconds > by_kernel.seconds
    assert default == by_xla, "no record states that the kernel was right on a GPU"


def test_gpus_without_fp8_are_refused_before_a_search():
    search = search_of(model_of(precision={"matmul": "fp8_current"}), "a100-80:1x8")
    with refused("precision.matmul: fp8_current", "NVIDIA A100-SXM4-80GB does not", "expected null"):
        search.best(1)
