"""Which attention is chosen, and what is said about the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.attention import AttentionRequest, attend, choose_backend, choose_context_strategy
from jaxpar.config.errors import UserError

HOPPER = AttentionRequest(
    platform="gpu", dtype="bfloat16", heads=8, kv_heads=2, head_dim=128, packed=False, window=None, softcap=None,
    prefix=False, sequence=4096, context=1, compute_capability=9.0,
)  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"window": 512}, {"dtype": "float16", "head_dim": 256}], ids=str)
def test_cudnn_is_preferred_where_it_computes_what_is_asked_for(change: dict) -> None:
    choice = choose_backend("auto", replace(HOPPER, **change))
    assert choice.name == "cudnn" and "preferred" in choice.rejected["blockwise"]


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
        ({"packed": True}, "segment ids"),
        ({"prefix": True}, "prefix"),
        ({"softcap": 30.0}, "soft-cap"),
        ({"context": 2}, "context"),
    ],
)
def test_what_cudnn_does_not_compute_goes_to_blockwise_with_the_reason(change: dict, reason: str) -> None:
    request = replace(HOPPER, **change)
    choice = choose_backend("auto", request)
    assert choice.name == "blockwise" and reason in choice.rejected["cudnn"]
    with pytest.raises(UserError, match=r"attention\.backend is 'cudnn', which does not support this run") as error:
        choose_backend("cudnn", request)
    assert choice.rejected["cudnn"] in str(error.value)


def test_a_named_backend_is_taken_though_another_is_preferred() -> None:
    choice = choose_backend("blockwise", HOPPER)
    assert choice.name == "blockwise" and choice.rejected.keys() == {"cudnn"}


def test_the_context_strategy_is_the_only_one_there_is() -> None:
    choice = choose_context_strategy("auto", replace(HOPPER, context=4))
    assert (choice.name, choice.rejected) == ("allgather", {})
    assert choose_context_strategy("allgather", HOPPER).name == "allgather"


def test_a_name_that_does_not_exist_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"attention\.backend is 'cuddn'; expected auto, cudnn or blockwise.*cudnn\?"):
        choose_backend("cuddn", HOPPER)


@pytest.mark.parametrize("backend", ["cudnn", "blockwise"])
def test_every_choice_names_a_function(backend: str) -> None:
    assert callable(attend(backend, "allgather"))
