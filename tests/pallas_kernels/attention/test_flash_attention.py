"""`flash_attention`: what it computes on a CPU, what it refuses, and which implementation it says it took."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import flash_attention, toolchain, verified
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.choice import UNVERIFIED, Unsupported
from pallas_kernels.masks import Mask
from tests.pallas_kernels.dense64 import Tokens, attention, pairs, worst
from tests.sentences import refused

HOPPER = Request(
    platform="gpu", dtype="bfloat16", heads=8, kv_heads=2, width=128, value_width=128, batch=1, queries=4096, keys=4096,
    compute_capability=9.0, gpu="NVIDIA H200", processors=132,
)  # fmt: skip
SEGMENTS = np.array([[1] * 5 + [2] * 6, [1] * 9 + [0] * 2], np.int32)


def arrays(queries: int = 11, keys: int = 11, heads: int = 4, kv_heads: int = 2, dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = ((queries, heads), (keys, kv_heads), (keys, kv_heads))
    return [jnp.asarray(rng.normal(size=(2, *shape, 8)), dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({"causal": True}, Mask()),
        ({"causal": False, "softcap": 2.0}, Mask(causal=False)),
        ({"causal": True, "window": 4, "segment_ids": SEGMENTS}, Mask(window=4, segmented=True)),
        ({"causal": True, "prefix": np.array([3, 7], np.int32)}, Mask(prefix=True)),
    ],
    ids=["causal", "full-softcap", "packed-window", "prefix"],
)
def test_output_lse_and_their_gradients_equal_float64(options: dict[str, Any], mask: Mask) -> None:
    inputs = arrays()
    d_out, d_lse = np.ones((2, 11, 4, 8), np.float32), np.linspace(-1, 1, 2 * 11 * 4).reshape(2, 11, 4)
    attend = lambda q, k, v: flash_attention(q, k, v, **options, return_lse=True)
    (out, lse), pull = jax.vjp(attend, *inputs)
    found = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *pull((d_out, jnp.float32(d_lse)))), strict=True))
    kept = pairs(mask, Tokens.whole_rows(SEGMENTS, np.array([3, 7], np.int32)))
    expected = attention(*map(np.asarray, inputs), kept, d_out, d_lse, options.get("softcap"))
    assert max(worst(found, expected).values()) <= 1e-5


def test_offsets_place_queries_in_a_row_of_keys() -> None:
    q, k, v = arrays()
    whole = flash_attention(q, k, v, causal=True, window=5, segment_ids=SEGMENTS)
    options = {"causal": True, "window": 5, "segment_ids": (SEGMENTS[:, 7:], SEGMENTS)}
    for offset in (7, jnp.int32(7), np.array([7, 7])):
        part = flash_attention(q[:, 7:], k, v, q_offset=offset, **options)
        np.testing.assert_allclose(part, whole[:, 7:], atol=1e-6)
    moved = flash_attention(q, k, v, causal=True, q_offset=3, kv_offset=3)
    np.testing.assert_allclose(moved, flash_attention(q, k, v, causal=True), atol=1e-6)


def test_a_kernel_in_the_interpreter_gives_what_plain_jax_gives() -> None:
    q, k, v = (jnp.tile(x, 8) for x in arrays(dtype=jnp.bfloat16))
    attend = lambda name: flash_attention(q, k, v, causal=True, implementation=name, interpret=True)
    np.testing.assert_allclose(attend("triton").astype(float), attend("xla").astype(float), atol=2e-2)


@pytest.mark.parametrize(
    ("change", "options", "parts"),
    [
        ({"heads": 3}, {}, ("3 query heads", "2 KV heads", "query (2, 11, 3, 8), key (2, 11, 2, 8)")),
        ({"dtype": np.int32}, {}, ("got int32", "query (2, 11, 4, 8)")),
        ({}, {"window": 0}, ("whole number from 1", "got 0", "query (2, 11, 4, 8)")),
        ({}, {"segment_ids": SEGMENTS[:, 1:]}, ("each query (2, 11)", "not int32 (2, 10)", "query (2, 11, 4, 8)")),
        ({"keys": 9}, {"segment_ids": SEGMENTS}, ("each key (2, 9)", "not int32 (2, 11)")),
        ({}, {"segment_ids": SEGMENTS * 1.0}, ("integers", "not float64 (2, 11)")),
        ({}, {"prefix": np.zeros(3, np.int32)}, ("each row (2)", "got int32 (3,)")),
        ({}, {"prefix": 3, "causal": False}, ("prefix", "causal")),
        ({"keys": 9}, {"segment_ids": (SEGMENTS,) * 3}, ("queries", "keys", "got 3", "query (2, 11, 4, 8)")),
        ({}, {"segment_ids": [[1] * 11] * 2}, ("each query (2, 11)", "not a list", "query (2, 11, 4, 8)")),
        ({}, {"segment_ids": (SEGMENTS, None)}, ("each key (2, 11)", "not a NoneType", "query (2, 11, 4, 8)")),
        ({}, {"causal": None}, ("causal", "True or False", "got None", "query (2, 11, 4, 8)")),
        ({}, {"softcap": 0.0}, ("soft-cap", "finite", "above 0", "got 0.0")),
        ({}, {"softcap": "30"}, ("soft-cap", "finite", "above 0", "got '30'")),
        ({}, {"softcap": float("inf")}, ("soft-cap", "finite", "above 0", "got inf")),
        ({}, {"q_offset": 2**31 - 5}, ("0 to 2147483646", "offset 2147483643", "11 tokens")),
        ({}, {"q_offset": -1}, ("got offset -1",)),
        ({"keys": 0}, {}, ("attention of nothing",)),
        ({}, {"implementation": "triton"}, ("'triton'", "query (2, 11, 4, 8)", "platform is cpu")),
        ({}, {"implementation": "tritan"}, ("'tritan'", "expected one of auto, flash")),
    ],
)
def test_bad_input_is_refused_in_a_sentence_with_the_shapes(
    change: dict, options: dict, parts: tuple[str, ...]
) -> None:
    with refused(*parts, error=ValueError):
        flash_attention(*arrays(**change), **({"causal": True} | options))


def test_numbers_of_numpy_are_numbers_and_lists_are_no_arrays() -> None:
    q, k, v = arrays()
    plain = flash_attention(q, k, v, causal=True, window=4, q_offset=2, scale=0.5)
    numbers: dict[str, Any] = {"window": np.int64(4), "q_offset": np.int32(2), "scale": np.float32(0.5)}
    found = flash_attention(q, k, v, causal=np.True_, **numbers)
    assert np.array_equal(found, plain)
    with refused("arrays [batch, tokens, heads, width]", "key", "list", error=ValueError):
        flash_attention(q, [k], v, causal=True)  # pyright: ignore[reportArgumentType]


def test_more_elements_than_kernels_can_count_are_refused_with_the_shapes() -> None:
    x = jax.ShapeDtypeStruct((64, 2**18, 2, 64), jnp.bfloat16)
    attend = lambda q, k, v: flash_attention(q, k, v, causal=True, implementation="flash", interpret=True)
    with refused("key (64, 262144, 2, 64)", "2^31 - 1", "2,147,483,648", error=ValueError):
        jax.eval_shape(attend, x, x, x)


@pytest.mark.parametrize(
    ("k", "sentence"),
    [((2, 11, 2), "arrays"), ((1, 11, 2, 8), "do not fit together"), ((2, 11, 2, 4), "heads of one width")],
)
def test_arrays_that_do_not_fit_together_are_refused(k: tuple[int, ...], sentence: str) -> None:
    q, _, v = arrays()
    with pytest.raises(ValueError, match=sentence):
        flash_attention(q, jnp.zeros(k), v if len(k) < 4 else jnp.zeros((*k[:3], 8)), causal=True)


def test_nothing_unverified_is_chosen_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = replace(HOPPER, mask=Mask(segmented=True))
    file = tmp_path / "jaxpar" / "verified.json"
    file.parent.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verified, "records", verified.records.__wrapped__)
    monkeypatch.setattr(verified, "FILE", tmp_path / "none")
    here = {"jax": jax.__version__, "cuda": "12.9.79", "ptxas": "12.9.86"}
    monkeypatch.setattr(verified, "versions", lambda: here)
    assert REGISTRY.choose("auto", packed).rejected["triton"] == UNVERIFIED
    named = REGISTRY.choose("triton", packed)
    assert not named.verified and named.reason == f"the call names triton, though {UNVERIFIED}"
    record = {
        "kernel": "attention/triton", "device": "NVIDIA H200", "processors": 132, "date": "2026-01-01",
        "versions": here, "sources": verified.digest("attention/triton"),
    }  # fmt: skip
    file.write_text(json.dumps([record]))
    assert REGISTRY.choose("auto", packed).name == "triton" and REGISTRY.choose("triton", packed).verified
    old = [{"versions": here | {name: "0.1.2"}} for name in here]
    for stale in (*old, {"versions": {"jax": jax.__version__}}, {"sources": "0" * 16}, {"processors": 78}):
        file.write_text(json.dumps([record | stale]))
        assert REGISTRY.choose("auto", packed).name == "xla", (
            f"a record says nothing of what has changed since: {stale}"
        )
    file.write_text(json.dumps([record]))
    for other in ({"gpu": "NVIDIA H100 PCIe", "processors": 114}, {"processors": 16}, {"gpu": "", "processors": None}):
        assert REGISTRY.choose("auto", replace(packed, **other)).name == "xla", f"a record is of one GPU: {other}"
    monkeypatch.setattr(verified, "versions", lambda: {"jax": jax.__version__})
    assert REGISTRY.choose("auto", packed).name == "triton", "a plan is made on a machine without CUDA"
    assert REGISTRY.choose("auto", HOPPER).name == "cudnn", "which is ahead where the mask is dense"
    file.write_text(json.dumps([{name: value for name, value in record.items() if name != "sources"}]))
    with refused(str(file), "list of records", "sources", error=ValueError):
        REGISTRY.choose("auto", packed)
    file.write_text("[{]")
    with refused(str(file), "benchmarks.gpu --record", error=ValueError):
        REGISTRY.choose("auto", packed)


def test_a_record_is_of_the_text_of_a_kernel_and_of_what_it_shares(tmp_path: Path) -> None:
    digest = lambda: verified.digest.__wrapped__("attention/triton", tmp_path)
    for name in ("attention/triton/a.py", "attention/mosaic/a.py", *verified.SOURCES["attention/triton"][1:]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    found = [digest()]
    (tmp_path / "attention/mosaic/a.py").write_text("second")
    assert digest() == found[0], "another kernel's sources are none of its own"
    for name in ("attention/triton/a.py", "attention/triton/b.py", "masks.py"):
        (tmp_path / name).write_text("second")
        found.append(digest())
    assert len(set(found)) == 4


def _recorded(monkeypatch: pytest.MonkeyPatch, speeds: dict[str, dict[str, float]], request: Request = HOPPER) -> None:
    """Let there be records of these kernels of attention, with these speeds, on the GPU of a request."""
    made = [
        verified.Record(
            name := f"attention/{short}", request.gpu, request.processors or 0, "", tuple(toolchain.versions().items()),
            verified.digest(name), tuple(found.items()),
        )
        for short, found in speeds.items()
    ]  # fmt: skip
    monkeypatch.setattr(verified, "records", lambda: tuple(made))


def test_of_two_verified_forms_for_hopper_the_faster_one_is_preferred_unless_bits_are_to_be_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _recorded(monkeypatch, {entry.name: {} for entry in REGISTRY.entries if entry.recorded})
    packed = replace(HOPPER, mask=Mask(segmented=True))
    for name in ("auto", "flash"):
        assert REGISTRY.choose(name, packed).name == "mosaic"
        chosen = REGISTRY.choose(name, replace(packed, deterministic=True))
        assert chosen.verified and chosen.name == "mosaic_deterministic" and "same bits" not in chosen.reason
        assert "same bits" in chosen.rejected["mosaic"]
    assert "the gradient of queries is not the same bits in every run" in REGISTRY.choose("mosaic", packed).reason
    assert "its gradients are the same bits in every run only with" in REGISTRY.choose("auto", HOPPER).reason
    with refused("'mosaic'", "same bits", error=Unsupported):
        flash_attention(*arrays(), causal=True, deterministic=True, implementation="mosaic", interpret=True)


@pytest.mark.parametrize("mask", [Mask(segmented=True), Mask(window=512), Mask()], ids=str)
def test_on_blackwell_triton_has_what_cudnn_refuses(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    of = {"compute_capability": 10.0, "gpu": "NVIDIA B200", "processors": 148, "runs": True, "compares": True}
    blackwell = replace(HOPPER, **of, mask=mask)
    _recorded(monkeypatch, {"triton": {}}, blackwell)
    assert REGISTRY.choose("auto", blackwell).name == "cudnn"
    for change in ({"full_rows": False}, {"lse": True}, {"softcap": 30.0}, {"deterministic": True}):
        assert REGISTRY.choose("auto", replace(blackwell, **change)).name == "triton"


def test_auto_prefers_the_recorded_speed_for_such_a_mask_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"causal 128": 500.0, "packed 128": 300.0}
    _recorded(monkeypatch, {"mosaic": found, "triton": {"packed 128": 310.0}, "cudnn": {"causal 128": 450.0}})
    dense, packed = REGISTRY.choose("auto", HOPPER), REGISTRY.choose("auto", replace(HOPPER, mask=Mask(segmented=True)))
    assert dense.name == "mosaic" and "fastest recorded" in dense.reason and "500" in dense.reason
    assert dense.rejected["cudnn"] == "mosaic is preferred"
    assert packed.name == "triton" and "310" in packed.reason
    assert REGISTRY.choose("auto", replace(HOPPER, width=64, value_width=64)).name == "cudnn", (
        "nothing is recorded of that width"
    )
    assert REGISTRY.choose("auto", replace(HOPPER, lse=True)).name == "mosaic", "the fastest of those that compute it"
    _recorded(monkeypatch, {"mosaic": {"causal 128": 400.0}, "cudnn": {"causal 128": 450.0}})
    assert REGISTRY.choose("auto", HOPPER).name == "cudnn"
    _recorded(monkeypatch, {"mosaic": {"causal 128": 900.0}})
    assert REGISTRY.choose("auto", HOPPER).name == "cudnn", "one speed compares nothing"


def test_the_records_in_the_repository_are_of_implementations_that_exist() -> None:
    names = {f"attention/{entry.name}" for entry in REGISTRY.entries}
    of_attention = {record.kernel for record in verified.records() if record.kernel.startswith("attention/")}
    assert of_attention <= names


def test_one_line_of_the_log_states_what_ran_and_why(caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = arrays(queries=3)
    with caplog.at_level(logging.INFO, "pallas_kernels"):
        for _ in range(2):
            flash_attention(q, k, v, causal=True, kv_offset=1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "attention by xla (the first in order of preference that supports this) for query (2, 3, 4, 8)"
    )
    assert "; not " in line and "cudnn: it needs an NVIDIA GPU" in line
