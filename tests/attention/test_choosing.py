"""Which attention is chosen, and what is reported of the others."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from jaxpar.attention import (
    BACKENDS,
    AttentionRequest,
    ContextLayout,
    attend,
    choose_backend,
    choose_context_strategy,
    context_layout,
)
from jaxpar.attention.backends import kernel_request
from jaxpar.config import AttentionConfig
from pallas_kernels.choice import UNVERIFIED
from tests.sentences import refused

HOPPER = AttentionRequest(
    platform="gpu", dtype="bfloat16", heads=8, kv_heads=2, head_dim=128, packed=False, window=None, softcap=None,
    prefix=False, sequence=4096, context=1, compute_capability=9.0,
)  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"window": 512}, {"dtype": "float16", "head_dim": 256}], ids=str)
def test_cudnn_is_preferred_where_it_computes_what_is_asked_for(change: dict) -> None:
    choice = choose_backend("auto", replace(HOPPER, **change))
    assert choice.name == "cudnn" and "preferred" in choice.rejected["xla"]
    assert choice.rejected["triton"] == UNVERIFIED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"platform": "cpu", "compute_capability": None}, "platform is cpu"),
        ({"compute_capability": 7.5}, "the GPU has 7.5"),
        ({"compute_capability": None}, "an unknown one"),
        ({"dtype": "float32"}, "not float32"),
        ({"head_dim": 100}, "not 100"),
        ({"head_dim": 264}, "up to 256"),
        ({"head_dim": 256, "compute_capability": 8.0}, "up to 128"),
        ({"packed": True, "sequence": 2**18}, "packed layout"),
        ({"packed": True, "compute_capability": 8.0}, "packed layout"),
        ({"prefix": True}, "prefix"),
        ({"softcap": 30.0}, "soft-cap"),
        ({"full_rows": False}, "parts of a row"),
    ],
)
def test_what_no_verified_kernel_computes_goes_to_plain_jax_with_the_reason(change: dict, reason: str) -> None:
    request = replace(HOPPER, **change)
    choice = choose_backend("auto", request)
    assert choice.name == "xla" and reason in choice.rejected["cudnn"]
    with refused("attention.backend", "'cudnn'", "does not support") as error:
        choose_backend("cudnn", request)
    assert choice.rejected["cudnn"] in str(error.value) and "kind" not in str(error.value), "the model declares none"
    with refused("attention.backend", "'cudnn'", "the layers of kind local"):
        choose_backend("cudnn", request, kind="local")


def test_a_named_backend_is_chosen_though_another_is_preferred() -> None:
    choice = choose_backend("xla", HOPPER)
    assert choice.name == "xla" and {"cudnn", "triton"} <= choice.rejected.keys()
    assert choice.reason == choice.rejected["cudnn"] == "attention.backend names xla"


def test_our_kernels_are_chosen_where_they_are_named_and_the_plan_states_what_they_lack() -> None:
    choice = choose_backend("flash", replace(HOPPER, packed=True))
    assert choice.name == "mosaic"
    assert "attention.backend names flash" in choice.reason and UNVERIFIED in choice.reason


def test_the_same_bits_in_every_run_are_asked_for_and_a_named_backend_that_varies_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, dense = (replace(HOPPER, packed=packed, deterministic=True) for packed in (True, False))
    assert choose_backend("flash", packed).name == "mosaic_deterministic"
    with refused("attention.backend", "'mosaic'", "gradient of queries", "same bits"):
        choose_backend("mosaic", packed)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false")
    assert choose_backend("auto", dense).name == "xla"
    with refused("attention.backend", "'cudnn'", "--xla_gpu_deterministic_ops=true"):
        choose_backend("cudnn", dense)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    assert choose_backend("auto", dense).name == "cudnn"


@pytest.mark.parametrize("name", ["mosaic", "mosaic_deterministic", "triton"])
def test_each_of_our_kernels_may_be_named_and_the_plan_states_whose_results_vary(name: str) -> None:
    choice = choose_backend(name, replace(HOPPER, packed=True))
    assert choice.name == name and ("not the same bits in every run" in choice.reason) == (name == "mosaic")


def test_the_configuration_knows_every_backend_that_there_is() -> None:
    assert get_args(get_type_hints(AttentionConfig)["backend"]) == BACKENDS


@pytest.mark.parametrize("change", [{"platform": "cpu", "compute_capability": None}, {"dtype": "float32"}], ids=str)
def test_our_kernels_are_refused_where_they_do_not_compute_what_is_asked_for(change: dict) -> None:
    asked = "cpu" if "platform" in change else "float32"
    with refused("attention.backend", "'flash'", asked):
        choose_backend("flash", replace(HOPPER, **change))


LONG = replace(HOPPER, sequence=2**20, context=8, rows=1)


@pytest.mark.parametrize(
    ("request_", "name", "reason"),
    [
        (HOPPER, "allgather", "context is 1"),
        (replace(HOPPER, context=4, packed=True, softcap=9.0), "allgather", "4.0 MiB of gathered keys and values"),
        (replace(HOPPER, context=4, packed=True), "ulysses", "which cuDNN can"),
        (replace(LONG, packed=True), "ring", "instead of 1.0 GiB of gathered"),
        (LONG, "ulysses", "which cuDNN can"),
        (replace(LONG, heads=12), "ring", "instead of 1.0 GiB of gathered"),
        (replace(LONG, window=4096), "ring", "only neighbouring ranks"),
        (replace(LONG, packed=True, permutes=False), "allgather", "supports this run"),
    ],
    ids=["one device", "short", "packed", "long", "whole rows", "few heads", "window", "branching"],
)
def test_the_context_strategy_and_its_reason(request_: AttentionRequest, name: str, reason: str) -> None:
    choice = choose_context_strategy("auto", request_)
    assert choice.name == name and reason in choice.reason, choice


@pytest.mark.parametrize("backend", ["flash", "triton", "xla"])
def test_whole_rows_are_for_cudnn_alone(backend: str) -> None:
    choice = choose_context_strategy("auto", LONG, backend)
    assert choice.name == "ring" and "cuDNN" not in choice.reason, choice
    assert choose_context_strategy("auto", LONG, "cudnn").name == "ulysses"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("ring", {"permutes": False}, "branching ticks"),
        ("ulysses", {"heads": 12}, "12 query heads of a device are not shared out evenly by 8 ranks"),
        ("usp", {"ulysses": 3}, "groups of 3"),
        ("usp", {"ulysses": 8}, "it is ulysses"),
        ("usp", {"ulysses": 1}, "it is ring"),
        ("usp", {"ulysses": 4, "heads": 6}, "6 query heads"),
        ("usp", {"ulysses": 4, "permutes": False}, "branching ticks"),
    ],
)
def test_a_named_strategy_that_cannot_be_is_refused_with_the_reason(name: str, change: dict, reason: str) -> None:
    with refused("parallel.context_strategy", f"'{name}'", "does not support", reason):
        choose_context_strategy(name, replace(LONG, **change))


@pytest.mark.parametrize(
    ("name", "change", "order"),
    [
        ("ring", {}, "zigzag"),
        ("ring", {"window": 2**17}, "contiguous"),
        ("ring", {"window": 2**17 + 1}, "zigzag"),
        ("ring", {"sequence": 24}, "striped"),
        ("ulysses", {}, "contiguous"),
        ("usp", {"ulysses": 4}, "zigzag"),
    ],
)
def test_the_order_balances_what_is_not_balanced_otherwise(name: str, change: dict, order: str) -> None:
    assert context_layout(name, "auto", replace(LONG, **change)).order == order


def test_a_name_that_does_not_exist_gets_the_nearest_one() -> None:
    with refused("attention.backend", "'cuddn'", "auto, flash, mosaic, ", "xla", "cudnn?"):
        choose_backend("cuddn", HOPPER)


@pytest.mark.parametrize("backend", ["cudnn", "mosaic", "triton", "xla"])
def test_every_choice_names_a_function(backend: str) -> None:
    for strategy in ("allgather", "ring", "ulysses", "usp"):
        assert callable(attend(backend, strategy, ContextLayout()))


def test_the_kernel_gets_whole_rows_and_a_share_of_the_heads_or_parts_of_rows_and_all_heads() -> None:
    split = replace(HOPPER, context=4, heads=8, kv_heads=2, sequence=4096)
    found = [kernel_request(replace(split, full_rows=whole)) for whole in (True, False)]
    assert [(one.queries, one.keys, one.heads, one.kv_heads) for one in found] == [
        (4096, 4096, 2, 1), (1024, 4096, 8, 2),
    ]  # fmt: skip
    assert kernel_request(replace(split, context=16)).heads == 1, "more ranks than heads, which a search asks about"
