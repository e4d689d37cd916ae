"""Refusals of `precision.matmul`, each with the way out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.schema.layout import ParallelConfig
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.choices.matmul import check_matmul_units, exempt, matmul_rows, routed_choice, tiled_choice
from jaxpar.layout.make_plan import make_plan, resolve_config
from tests.sentences import refusals, refused
from tests.small_run import small

HOPPER: Any = type(
    "H100", (), {"platform": "gpu", "device_kind": "NVIDIA H100", "compute_capability": "9.0", "core_count": 132}
)()

YAML = """
model: {layers: 4, embed: 64, heads: 8, mlp: 128, vocab: 64}
data: {source: synthetic, sequence_length: 64, batch_size: 8}
"""
CURRENT = "precision.matmul=fp8_current"
BLOCK = "precision.matmul=fp8_block | model.embed=128 | model.mlp=256 | model.head_dim=128 | data.sequence_length=256"
KERNEL = MatmulOptions(backend="mosaic")


@refusals(
    """
    precision.matmul=mxfp8 | data.sequence_length=80 | data.batch_size=1 => precision.matmul: mxfp8 |
        data.sequence_length: 80 | multiple of 32
    BLOCK | data.sequence_length=320 => precision.matmul: fp8_block | data.sequence_length: 320 | multiple of 128 |
        a recipe without tiles
    BLOCK | parallel.tensor=2 | parallel.context=2 => data.sequence_length: 256 | 4 parts | multiple of 512 |
        fewer ranks
    BLOCK | parallel.context=2 | parallel.context_order=striped => context_order: striped | fp8_block |
        zigzag or contiguous
    BLOCK | model.mlp=384 | parallel.tensor=2 => multiples of 128 | 128 x 192 | mlp_in | precision.matmul: null
    CURRENT | precision.matmul_options.backend=mosaic => precision.matmul_options.backend | mosaic | fp8_current |
        fp8_block
    CURRENT | precision.matmul_options.backend=cudnn | model.experts={count: 4} => precision.matmul_options.backend |
        cudnn | fp8_current
    precision.matmul=fp8_curent => precision.matmul | fp8_curent | fp8_current
    CURRENT | precision.compute=float16 => precision.compute | float16 | bfloat16
    CURRENT | precision.matmul_options={first_layers: 2, last_layers: 2} => first_layers 2 | last_layers 2 | 4 layers |
        fewer
    CURRENT | precision.matmul_options={first_layers: -1} => first_layers | at least 0 | -1
    precision.matmul=fp8_block | parallel.tensor=2 | parallel.overlap.tensor=ring => overlap.tensor: ring | fp8_block |
        auto or plain
    CURRENT | memory.mlp_tiles=2 => memory.mlp_tiles: 2 | 1 or null
    CURRENT | precision.matmul_options={exclude: [atention_out]} => precision.matmul_options.exclude | atention_out |
        attention_out
    CURRENT | precision.matmul_options={exclude: [attention_in, attention_out, mlp_in, mlp_out]} =>
        precision.matmul_options.exclude | leave no matmul | fewer
    CURRENT | model.mlp=120 => precision.matmul | multiples of 16 | up | 64 x 120 | mlp_in
    CURRENT | model.mlp=144 | parallel.tensor=2 => precision.matmul | 64 x 72 | parallel.tensor: 2 |
        precision.matmul: null
    CURRENT | data.sequence_length=34 | data.batch_size=1 => 34 tokens | multiple of 16 | null
    CURRENT | parallel.tensor=8 | data.batch_size=1 | model.latent_attention={kv_rank: 48, rope_dim: 16} =>
        attention_down | 8 with parallel.tensor: 8 | matmul_options.exclude
    CURRENT | precision.matmul_options.history=4 => history: 4 | fp8_delayed
    precision.matmul_options={exclude: [head, attention_out]} =>
        precision.matmul_options: {exclude: [head, attention_out], first_layers: 1, last_layers: 1, |
        {exclude: [head, router, attention_out], first_layers: 1, last_layers: 1,
    precision.matmul=fp8_delayed | precision.matmul_options.history=0 => history | at least 1
    precision.matmul_except={first_layers: 2} => matmul_except | precision.matmul_options
    precision.matmul_history=2 => matmul_history | precision.matmul_options.history
""",
    BLOCK=BLOCK,
    CURRENT=CURRENT,
)
def test_refusals_name_the_key_the_value_and_the_way_out(overrides: list[str], parts: tuple[str, ...], tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(YAML, encoding="utf-8")
    with refused(*parts):
        validate(load_config(path, overrides))


def test_sizes_of_a_rank_are_checked_once_the_devices_are_known():
    config = small(
        model={"embed": 64, "mlp": 160, "layers": 4}, precision={"matmul": "fp8_current"}, parallel={"tensor": -1}
    )
    with refused("parallel.tensor: 4", "64 x 40"):
        resolve_config(config, 4)


@pytest.mark.parametrize(
    ("name", "capability"),
    [("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA A100-PCIE-40GB", "8.0"), ("Tesla T4", "7.5"), ("NVIDIA A30", "8.0")],
)
def test_a_gpu_without_fp8_is_refused_whether_the_catalogue_has_it_or_not(name: str, capability: str):
    for recipe in ("fp8_current", "fp8_delayed", "fp8_block"):
        with refused(f"precision.matmul: {recipe}", name, "null"):
            check_matmul_units(small(precision={"matmul": recipe}), DescribedGPU(name, capability, 100))


def test_gpus_with_fp8_take_the_recipes_that_their_units_have():
    hopper, ada = DescribedGPU("NVIDIA H100 PCIe", "9.0", 114), DescribedGPU("NVIDIA L40S", "8.9", 142)
    blackwell = DescribedGPU("NVIDIA B200", "10.0", 148)
    for device in (hopper, ada, blackwell):
        check_matmul_units(small(precision={"matmul": "fp8_current"}), device)
    tiles_of_32 = small(precision={"matmul": "mxfp8"})
    for device in (hopper, ada):
        with refused("precision.matmul: mxfp8", "Blackwell", device.device_kind, "fp8_block"):
            check_matmul_units(tiles_of_32, device)
    check_matmul_units(tiles_of_32, blackwell)


def test_a_kernel_that_is_named_and_does_not_run_is_refused():
    config = small(precision={"matmul": "fp8_block", "matmul_options": KERNEL})
    with refused("precision.matmul_options.backend is mosaic", "NVIDIA GPU", "expected auto"):
        tiled_choice(config, jax.devices()[0])


def test_a_kernel_is_chosen_by_the_largest_arrays_of_a_rank():
    """2^20 tokens of feed-forwards 2048 wide have as many numbers as indices of kernels reach."""
    of = lambda tokens, **precision: small(
        model={"embed": 128, "mlp": 2048, "head_dim": 32}, data={"sequence_length": tokens, "batch_size": 8},
        precision={"matmul": "fp8_block", "compute": "bfloat16", **precision},
    )  # fmt: skip
    found = tiled_choice(of(2**16, matmul_options=KERNEL), HOPPER)
    assert found is not None and found.name == "mosaic"
    with refused("precision.matmul_options.backend is mosaic", "2^31 - 1", "2,147,483,648", "expected auto"):
        tiled_choice(of(2**17, matmul_options=KERNEL), HOPPER)
    split = replace(of(2**17, matmul_options=KERNEL), parallel=ParallelConfig(fsdp=4))
    found = tiled_choice(split, HOPPER)
    assert found is not None and found.name == "mosaic"


def test_a_kernel_of_experts_is_chosen_by_the_rows_of_a_rank():
    precision = {"matmul": "fp8_current", "compute": "bfloat16"}
    of = lambda tokens, **named: small(
        model={"layers": 4, "embed": 128, "mlp": 128, "head_dim": 32, "experts": ExpertsConfig(count=4, width=2048)},
        data={"sequence_length": tokens, "batch_size": 8}, parallel={"fsdp": 1}, precision=precision | named,
    )  # fmt: skip
    many, few = (make_plan(of(tokens), jax.devices()[0]) for tokens in (2**17, 2**10))
    with refused("precision.matmul_options.backend is mosaic", "routed experts", "2^31 - 1"):
        routed_choice(of(2**17, matmul_options=KERNEL), HOPPER, many)
    found = routed_choice(of(2**10, matmul_options=KERNEL), HOPPER, few)
    assert found is not None and found.name == "mosaic"


def test_what_multiplies_tiles_of_routed_experts_is_chosen_apart():
    """The kernel of dense matmuls makes float32 too, and that of experts does not; cuDNN has none for experts."""
    hopper = HOPPER
    model = {"layers": 4, "embed": 128, "experts": ExpertsConfig(count=4, width=128)}
    of = lambda **precision: small(model=model, precision={"matmul": "fp8_block", **precision})
    found = routed_choice(of(compute="bfloat16", matmul_options=KERNEL), hopper)
    assert found is not None and found.name == "mosaic"
    found = routed_choice(of(compute="bfloat16"), hopper)
    assert found is not None and found.name == "xla" and "verified" in found.rejected["mosaic"]
    found = routed_choice(of(compute="bfloat16", matmul="mxfp8", matmul_options=MatmulOptions(backend="cudnn")), hopper)
    assert found is not None and found.name == "xla" and "squares" in found.rejected["mosaic"]
    with refused(
        "precision.matmul_options.backend is mosaic", "routed experts", "float32", "experts_in and experts_out"
    ):
        routed_choice(of(matmul_options=KERNEL), hopper)
    excepted = MatmulOptions(exclude=("experts_in", "experts_out"), backend="mosaic")
    assert routed_choice(of(matmul_options=excepted), hopper) is None
    for recipe in ("fp8_current", "fp8_delayed"):
        found = routed_choice(of(matmul=recipe, compute="bfloat16", matmul_options=KERNEL), hopper)
        assert found is not None and found.name == "mosaic"
    narrow = small(
        model={**model, "experts": ExpertsConfig(count=4, width=192)},
        precision={"matmul": "fp8_current", "compute": "bfloat16", "matmul_options": KERNEL},
    )
    with refused("precision.matmul_options.backend is mosaic", "routed experts", "multiples of 128"):
        routed_choice(narrow, hopper)


def test_widths_of_experts_that_are_no_whole_tiles_on_a_rank_are_refused():
    experts = ExpertsConfig(count=4, width=192)
    config = small(
        model={"layers": 4, "embed": 128, "mlp": 128, "head_dim": 32, "experts": experts},
        precision={"matmul": "fp8_block"}, data={"sequence_length": 256},
    )  # fmt: skip
    with refused("precision.matmul: fp8_block", "multiples of 128", "up is 128 x 192", "experts_in"):
        resolve_config(config, 1)
    excepted = replace(config.precision, matmul_options=MatmulOptions(exclude=("experts_in", "experts_out")))
    resolve_config(replace(config, precision=excepted), 1)
    resolve_config(replace(config, precision=replace(config.precision, matmul="mxfp8")), 1)


def test_the_plan_lists_each_exception_with_its_reason():
    config = small(model={"layers": 4, "embed": 64, "mlp": 128}, precision={"matmul": "fp8_delayed"})
    plan = make_plan(config, jax.devices()[0])
    [(_, what, formats), (_, once, why), *others] = matmul_rows(config, parse_cluster("h100:1x8").gpu, plan)
    assert "layers 1 to 2" in what and "down" in what and "output" not in what
    assert "e5m2" in formats and "16 steps" in formats
    assert "once per step" in once and "8 bits" in why
    name, peaks, why = others.pop()
    assert name == "peaks" and "bfloat16" in peaks and "FP8" in peaks and "MFU" in why
    assert [value for _, value, _ in others] == ["head", "attention_out", "layers 0 to 0 and 3 to 3"]
    assert all(reason for *_, reason in others)
    assert not matmul_rows(replace(config, precision=replace(config.precision, matmul=None)), None, plan)
    blocks = replace(config, precision=replace(config.precision, matmul="fp8_block"))
    assert (
        "128 numbers" in matmul_rows(blocks, None, plan)[0][2]
        and "gradients e4m3" in matmul_rows(blocks, None, plan)[0][2]
    )
    [row] = [
        row for row in matmul_rows(blocks, None, plan, tiled_choice(blocks, jax.devices()[0])) if "tiles" in row[0]
    ]
    assert row[1] == "xla" and "GPU" not in row[2], "on a CPU"
    assert tensor_names(config)[:3] == ("attention_in.input", "query", "key")
    assert [own.what for own in exempt(config)] == [value for _, value, _ in others]
