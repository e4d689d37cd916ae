"""Times of layouts in FP8: against programs that were compiled for GPUs, and what must follow from the recipe."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.config import Config, load_config
from jaxpar.cost.layer_case import layer_case
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.matmul_formats import group_names
from jaxpar.layout.choices.matmul_codes import matmul_codes
from jaxpar.planner.layout import Layout
from jaxpar.planner.planning import planned_config
from jaxpar.planner.step_time.layer_times import Sort
from jaxpar.planner.step_time.model import StepTime, step_time, steps_of
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import update_of
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused

FULL = Layout(fsdp=8, zero=3, remat="full")
KEPT = replace(FULL, remat="none")


@cache
def config_of(name: str, *options: str) -> Config:
    return planned_config(load_config(f"configs/{name}.yaml", [*options]))


def coded(config: Config, layout: Layout, cluster: str) -> Layout:
    """The layout with the codes of a configuration."""
    gpu, rows = parse_cluster(cluster).gpu, -(-config.model.layers // (layout.pipe * layout.virtual_stages))
    offload = "host" if layout.optimizer_offload else "none"
    chunks = layout.pipe * layout.virtual_stages
    return replace(layout, matmul_codes=matmul_codes(config, gpu, offload, None, ("",) * rows, chunks))


def parts(layout: Layout, *options: str, name: str = "llama3_8b", cluster: str = "h100:1x8") -> Step:
    config = config_of(name, *options)
    steps = steps_of(config.model, config.data.sequence_length, config.data.batch_size, parse_cluster(cluster))
    return steps.step(coded(config, layout, cluster))


def timed(layout: Layout, *options: str, name: str = "llama3_8b", cluster: str = "h100:1x8") -> StepTime:
    config = config_of(name, *options)
    return step_time(
        config.model, config.data.sequence_length, config.data.batch_size, coded(config, layout, cluster),
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


# ---- against programs for H100s, read at the same speeds (docs/fp8.md)

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


def test_fp8_gains_what_it_gains_in_the_compiled_program():
    """The difference of two programs says more of passes and rates than either does."""
    seconds = {case: computed(timed(layout, *options)) for case, (layout, options, _) in COMPILED.items()}
    gain = lambda case, of: (COMPILED[of][2] - COMPILED[case][2]) - (seconds[of] - seconds[case])
    assert gain("8b, current", "8b") == pytest.approx(0, abs=0.1)  # of 1.34 s
    assert gain("8b, 4 layers, tiles by xla", "8b, 4 layers") == pytest.approx(0, abs=0.01)  # of -0.04 s
    assert gain("8b, 4 layers, tiles by the kernel", "8b, 4 layers") == pytest.approx(0, abs=0.025)  # of 0.09 s


@pytest.mark.parametrize(("of", "seconds"), [("null", 91.1), ("fp8_delayed", 66.0), ("fp8_current", 71.0)])
def test_405b_on_1024_h100s_takes_what_its_compiled_programs_do(of: str, seconds: float):
    """They copy inputs of layers to the host, which hides, and recompute all; no program waits for a slowest host."""
    layout = replace(FULL, fsdp=1024)
    options = () if of == "null" else recipe(of)
    time = timed(layout, *options, name="llama3_405b", cluster="h100:128x8")
    assert time.seconds - time.breakdown["stragglers"] == pytest.approx(seconds, rel=0.07)
    if of == "fp8_current":
        assert time.breakdown["scales"] == pytest.approx(0.32, rel=0.02), "1,488 maxima, by trees over 128 hosts"


# ---- what follows

ALL = "{exclude: [], first_layers: 0, last_layers: 0}"


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


def test_a_kernel_that_does_not_run_there_multiplies_nothing():
    blackwell, kernel = parse_cluster("b200:1x8").gpu, recipe("fp8_block", backend="mosaic")
    found = matmul_codes(config_of("llama3_8b", *kernel), blackwell, "none", None, ("",) * 32, 1)
    assert found is not None and not found.multiplied
    found = matmul_codes(config_of("llama3_8b", *recipe("mxfp8")), blackwell, "none", None, ("",) * 32, 1)
    assert found is not None and found.multiplied and found.tile == 32


def test_gradients_that_a_gated_derivative_makes_as_codes_cost_a_byte_more_than_in_16_bits():
    """Of an RMSNorm's, RoPE's and GELU's derivative they are made in 16 bits and read again, as in docs/fp8.md."""
    gpu = parse_cluster("h100:1x8").gpu

    def passes(*options: str) -> tuple[tuple[str, ...], list[float]]:
        """(by_derivative, bytes of a gradient's number of the groups of a layer)."""
        found = matmul_codes(config_of("llama3_8b", *options), gpu, "none", None, ("",) * 32, 1)
        assert found is not None
        return found.by_derivative, [found.gradient(group) for group in ("attention_in", "mlp_in", "mlp_out")]

    delayed = recipe("fp8_delayed")
    assert passes(*delayed) == (("mlp_in",), [4, 1, 4])
    for options in (
        (*delayed, "model.activation=gelu"), recipe("fp8_current"),
        recipe("fp8_delayed", exclude="[mlp_in]"),
    ):  # fmt: skip
        assert passes(*options) == ((), [4, 4, 4]), options


def test_gpus_without_fp8_are_refused_before_a_search():
    search = search_of(model_of(precision={"matmul": "fp8_current"}), "a100-80:1x8")
    with refused("precision.matmul: fp8_current", "NVIDIA A100-SXM4-80GB does not", "expected null"):
        search.best(1)


# ---- weights and tokens on the wire


def test_maxima_of_squares_are_one_message_per_step():
    """A number of 4 bytes for 16,384 weights of 32 layers, of an all-reduce over 8 ranks, beside codes of 8 bits."""
    every = {"matmul_options": ALL}
    squares, scales = (parts(KEPT, *recipe(of, **every)) for of in ("fp8_block", "fp8_delayed"))
    weights = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    wanted = squares.network.ring(8, 1).reduce(4 * 32 * weights / 128**2)
    assert squares.once["data"] - scales.once["data"] == pytest.approx(wanted)
    assert 5e-5 < wanted < 5e-4


def test_codes_of_weights_are_half_of_the_bytes():
    every = recipe("fp8_delayed", matmul_options=ALL)
    start = parts(KEPT).network.ring(8, 1).gather(1e-9)
    gathered = lambda *options, of=KEPT: parts(of, *options).passed[Sort("")].gathered - start
    assert gathered(*every) == pytest.approx(gathered() / 2, rel=1e-6)
    squares, tiles = recipe("fp8_block", matmul_options=ALL), recipe("mxfp8", matmul_options=ALL)
    assert gathered(*squares) == gathered(*every)
    assert gathered(*tiles) == gathered(), "other codes for each side"
    assert gathered(*every, of=replace(KEPT, optimizer_offload=True)) == gathered(*every)
    some = parts(KEPT, *recipe("fp8_delayed")).passed
    assert (
        some[Sort("", exact=True)].gathered - start == gathered() > gathered(*recipe("fp8_delayed")) > gathered(*every)
    )


def test_rows_of_a_pipeline_that_hold_an_exception_are_gathered_in_the_compute_dtype():
    """8 rows of 4 stages: the first and the last of each may be the model's."""
    config = config_of("llama3_8b", *recipe("fp8_delayed"))
    gpu = parse_cluster("h100:1x8").gpu
    share = lambda rows, chunks: matmul_codes(config, gpu, "none", None, ("",) * rows, chunks)
    found, whole, short = share(8, 4), share(32, 1), share(2, 16)
    assert found is not None and whole is not None and short is not None
    assert (found.stored, whole.stored, short.stored) == (24 / 30, 1.0, 0.0)


def test_what_is_stored_as_codes_is_what_the_memory_estimate_counts():
    config = config_of("llama3_8b", *recipe("fp8_delayed"))
    codes = matmul_codes(config, parse_cluster("h100:1x8").gpu, "none", None, ("",) * 32, 1)
    case = layer_case(config.model, 8192, 1, 1, 1, "allgather", "bfloat16", codes=codes)
    whole = sum(spec.size for spec in case.shape.layer.matrices)
    out = 4096 * 4096  # attention_out
    assert case.coded == whole - out and case.exact.coded == 0


def test_tensor_ranks_gather_tokens_as_codes():
    """Backward and forward; sums that are scattered stay in the compute dtype."""
    layout = Layout(fsdp=4, tensor=2, zero=1)
    every = recipe("fp8_delayed", matmul_options=ALL)
    sent = lambda *options: timed(layout, *options).breakdown["tensor"]
    assert sent(*every) < 0.85 * sent()
    assert sent(*every) < sent(*recipe("fp8_delayed")) < sent(), "attention_out and two layers are exceptions"
    tiles = sent(*recipe("fp8_block", matmul_options=ALL))
    assert sent(*every) < tiles < sent(), "gradients of what leaves a layer are quantised after they are gathered"


# ---- pipelines


def test_stages_with_an_exception_hold_up_the_others():
    layout = replace(Layout(pipe=4, fsdp=2, zero=1, schedule="1f1b"), remat="none")
    own = coded(config_of("llama3_8b", *recipe("fp8_delayed")), layout, "h100:1x8")
    first, second, third, last = parts(layout, *recipe("fp8_delayed")).chunks(own)
    assert first == last and second == third
    assert first.forward > second.forward and first.backward > second.backward
    ends, none = (
        timed(layout, *recipe("fp8_delayed", matmul_options=f"{{first_layers: {n}, last_layers: {n}}}")) for n in (1, 0)
    )
    assert ends.breakdown["bubble"] > none.breakdown["bubble"]


def test_as_large_a_share_is_exact_of_a_model_with_more_layers():
    """Bounds of a search are found from twice the layers, so that a layer has to take the same on average."""
    config, cluster = config_of("llama3_8b", *recipe("fp8_delayed")), parse_cluster("h100:1x8")

    def head(layout: Layout) -> float:
        """Seconds that do not grow with the layers."""
        models = (replace(config.model, layers=layers) for layers in (32, 64))
        one, two = (step_time(model, 8192, 64, layout, cluster).breakdown["matmuls"] for model in models)
        return 2 * one - two

    assert head(coded(config, KEPT, "h100:1x8")) == pytest.approx(head(KEPT))
