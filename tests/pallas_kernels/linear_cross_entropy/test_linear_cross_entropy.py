"""The head's loss by the kernel, in the interpreter, and by plain JAX, against float64; and the loss of kept logits."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pallas_kernels import fused_linear_cross_entropy
from pallas_kernels.linear_cross_entropy import Tile
from pallas_kernels.linear_cross_entropy.registry import REGISTRY, Request
from pallas_kernels.toolchain import versions
from pallas_kernels.verified import Record, digest
from tests.pallas_kernels.dense64 import worst
from tests.pallas_kernels.linear_cross_entropy.linear64 import Case, case, losses
from tests.same_bits import assert_same_bits
from tests.sentences import refused

TILE = Tile(32, 128, 32, warps=4, stages=2)
KERNEL: dict[str, Any] = {"implementation": "triton", "interpret": True, "tile": TILE}
PLAIN: dict[str, Any] = {"implementation": "xla"}


def arrays(of: Case, dtype: Any, vocab_first: bool = False) -> tuple[jax.Array, jax.Array, jax.Array]:
    table = of.table.T if vocab_first else of.table
    return jnp.asarray(of.x, dtype), jnp.asarray(table, dtype), jnp.asarray(of.labels)


def rounded(of: Case, dtype: Any) -> Case:
    """The numbers that the kernel gets."""
    return of._replace(
        **{name: np.asarray(jnp.asarray(getattr(of, name), dtype), np.float64) for name in ("x", "table")}
    )


def found(of: Case, dtype: Any = jnp.bfloat16, vocab_first: bool = False, **options: Any) -> dict[str, np.ndarray]:
    """What `losses` gives, by the implementation that `options` name."""
    x, table, labels = arrays(of, dtype, vocab_first)

    @jax.jit
    def program(x: jax.Array, table: jax.Array) -> tuple:
        function = lambda x, table: tuple(
            fused_linear_cross_entropy(x, table, labels, vocab_first=vocab_first, **options)
        )
        results, pullback = jax.vjp(function, x, table)
        return *results, *pullback((jnp.asarray(of.of_loss, jnp.float32), jnp.asarray(of.of_lse, jnp.float32)))

    loss, lse, dx, d_table = program(x, table)
    assert (loss.dtype, lse.dtype, dx.dtype, d_table.dtype) == (jnp.float32, jnp.float32, dtype, dtype)
    return {"loss": loss, "lse": lse, "dx": dx, "d_table": d_table.T if vocab_first else d_table}


def kept_logits(of: Case, *, vocab: int | None = None, softcap: float | None = None, z_loss: float = 0.0) -> dict:
    """By autodiff of bfloat16 matmuls with float32 logits, which are kept whole."""
    x, table, labels = arrays(of, jnp.bfloat16)

    def function(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.matmul(x, table[:, :vocab], preferred_element_type=jnp.float32)
        logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
        lse, counts = jax.nn.logsumexp(logits, axis=-1), labels != -100
        label = jnp.take_along_axis(logits, jnp.where(counts, labels, 0)[:, None], axis=1)[:, 0]
        return jnp.where(counts, lse - label + z_loss * lse**2, 0.0), jnp.where(counts, lse, 0.0)

    (loss, lse), pullback = jax.vjp(function, x, table)
    dx, d_table = pullback((jnp.asarray(of.of_loss, jnp.float32), jnp.asarray(of.of_lse, jnp.float32)))
    return {"loss": loss, "lse": lse, "dx": dx, "d_table": d_table}


SHAPES = [(1, 32, 5), (70, 48, 300), (96, 64, 512), (33, 40, 1025)]
"""(tokens, embed, columns): a single tile that nothing fills; ends in all directions; none; a tile of one column."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "z-loss": {"z_loss": 0.1},
    "padded columns": {"softcap": 3.0, "z_loss": 0.1, "vocab": -7},
}


@pytest.mark.parametrize(
    ("shape", "options", "vocab_first"),
    [
        (SHAPES[0], "plain", False),
        (SHAPES[1], "padded columns", False),
        (SHAPES[2], "softcap", True),
        (SHAPES[3], "z-loss", True),
    ],
)
def test_the_kernel_is_within_twice_the_error_of_logits_that_are_kept(
    shape: tuple[int, int, int], options: str, vocab_first: bool
):
    settings = dict(OPTIONS[options])
    if "vocab" in settings:
        settings["vocab"] += shape[2]
    of = case(*shape, vocab=settings.get("vocab"))
    wanted = losses(rounded(of, jnp.bfloat16), **settings)
    low = worst(kept_logits(of, **settings), wanted)
    # chunks of 256 columns: one, two or five, the last one shorter
    have = found(of, vocab_first=vocab_first, **settings, **KERNEL, chunk_bytes=2 * shape[0] * 256)
    errors = worst(have, wanted)
    assert all(errors[name] <= 2 * low[name] + 1e-6 for name in errors), (errors, low)
    dead = np.asarray(have["d_table"], np.float32)[:, settings.get("vocab", shape[2]) :]
    assert not dead.any(), "padding gets no gradient"
    keeping = found(of, vocab_first=vocab_first, **settings, **KERNEL, keep=True)
    for name in ("loss", "lse"):  # what is kept is rounded after it was summed: float32 apart, not bfloat16
        np.testing.assert_allclose(keeping[name], have[name], rtol=1e-6)
    errors = worst(keeping, wanted)
    assert all(errors[name] <= 2 * low[name] + 1e-6 for name in errors), (errors, low)
    assert not np.asarray(keeping["d_table"], np.float32)[:, settings.get("vocab", shape[2]) :].any()


@pytest.mark.parametrize("options", OPTIONS)
def test_plain_jax_equals_float64(options: str):
    settings = dict(OPTIONS[options])
    if "vocab" in settings:
        settings["vocab"] += 301
    of = case(41, 24, 301, vocab=settings.get("vocab"))
    wanted = losses(rounded(of, jnp.float32), **settings)
    for chunk_bytes in (4 * 41 * 50, 1 << 28):
        for keep in (False, True):
            have = found(of, jnp.float32, **settings, **PLAIN, chunk_bytes=chunk_bytes, keep=keep)
            assert max(worst(have, wanted).values()) <= 2e-6


@pytest.mark.parametrize("options", [KERNEL, PLAIN], ids=["triton", "xla"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_what_is_kept_rounds_each_gradient_once_more(options: dict[str, Any], dtype: Any):
    """A token that is a unit vector has a row of the table as its logits, and their gradients as that row's.

    Of logits around 20, which rounding to 8 bits would put off by up to 0.06, and probabilities by 6%. Half of the
    labels are so likely that their gradients are small differences: these have the same bits.
    """
    draw = np.random.default_rng(0)
    table, labels = 20 + draw.standard_normal((24, 300)), np.arange(24)
    table[::2, :24] += 15 * np.eye(24)[::2]
    of = Case(np.eye(24), table, labels, np.ones(24), np.zeros(24))
    wanted = losses(rounded(of, dtype))["d_table"]
    have = {keep: np.asarray(found(of, dtype, **options, keep=keep)["d_table"], np.float64) for keep in (False, True)}
    hit = labels[:, None] == np.arange(300)
    counted = (np.abs(wanted) > 6.2e-5) & ~hit  # float16 has fewer bits below
    off = {keep: np.max(np.abs(own - wanted)[counted] / np.abs(wanted)[counted]) for keep, own in have.items()}
    rounding = float(jnp.finfo(dtype).eps) / 2
    assert counted.mean() > 0.45
    assert off[False] <= 1.01 * rounding + 1e-5
    assert 1.1 * rounding < off[True] <= 2.01 * rounding + 1e-5
    np.testing.assert_array_equal(have[True][hit], have[False][hit])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("options", [KERNEL, PLAIN], ids=["triton", "xla"])
def test_columns_that_pad_the_table_may_hold_anything(options: dict[str, Any], keep: bool):
    """NaN in them reaches neither results nor gradients."""
    of, options = case(40, 32, 300, vocab=280), options | {"keep": keep}
    clean = found(of, **options, vocab=280, softcap=3.0)
    poisoned = of._replace(table=of.table.copy())
    poisoned.table[:, 280:] = np.nan
    have = found(poisoned, **options, vocab=280, softcap=3.0)
    chex.assert_trees_all_equal(have, clean, strict=True)


def test_ignored_tokens_have_no_loss_and_no_gradient():
    of = case(48, 32, 200, ignored=7)
    wanted = losses(rounded(of, jnp.bfloat16), ignored=7)
    ignored = of.labels == 7
    assert ignored.any() and not ignored.all()
    for keep in (False, True):
        have = found(of, **KERNEL, ignore_index=7, keep=keep)
        for name in ("loss", "lse", "dx"):
            assert not np.asarray(have[name], np.float32)[ignored].any()
        assert max(worst(have, wanted).values()) < 1e-2


def test_the_same_bits_every_time():
    of = case(70, 48, 300)
    for options in (KERNEL, KERNEL | {"keep": True}):
        assert_same_bits(found(of, **options), found(of, **options))


def shards(of: Case, ranks: int, vocab: int, **options: Any) -> dict[str, np.ndarray]:
    """Each rank of an axis `tensor` has a part of the columns. Types are unchecked: the interpreter knows none."""
    mesh = jax.make_mesh((ranks,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))

    def rank(x: jax.Array, part: jax.Array, labels: jax.Array, of_loss: jax.Array, of_lse: jax.Array) -> tuple:
        function = lambda x, part: tuple(
            fused_linear_cross_entropy(x, part, labels, axes=("tensor",), vocab=vocab, **options)
        )
        results, pullback = jax.vjp(function, x, part)
        dx, d_part = pullback((of_loss, of_lse))
        return *results, dx[None], d_part

    whole, part = P(), P(None, "tensor")
    mapped = jax.shard_map(
        rank, mesh=mesh, in_specs=(whole, part, whole, whole, whole), out_specs=(whole, whole, P("tensor"), part),
        check_vma=False,
    )  # fmt: skip
    cotangents = (jnp.asarray(cotangent, jnp.float32) for cotangent in (of.of_loss, of.of_lse))
    loss, lse, dx, d_table = jax.jit(mapped)(*arrays(of, jnp.bfloat16), *cotangents)
    return {"loss": loss, "lse": lse, "dx": dx.astype(jnp.float32).sum(0), "d_table": d_table}


@pytest.mark.parametrize("keep", [False, True])
def test_shards_of_the_vocabulary_add_up_to_the_whole(keep: bool):
    """The last of four ranks holds nothing but padding, the third some."""
    ranks, columns, vocab = 4, 512, 370
    of = case(40, 32, columns, vocab=vocab)
    have = shards(of, ranks, vocab, softcap=3.0, z_loss=0.1, keep=keep, **KERNEL)
    wanted = losses(rounded(of, jnp.bfloat16), vocab=vocab, softcap=3.0, z_loss=0.1)
    low = worst(kept_logits(of, vocab=vocab, softcap=3.0, z_loss=0.1), wanted)
    errors = worst(have, wanted)
    # each rank rounds its part of dx
    assert all(errors[name] <= 2 * low[name] + 1e-6 for name in errors), (errors, low)


@pytest.mark.parametrize("keep", [False, True])
def test_inside_a_shard_map_with_varying_types_checked(keep: bool):
    """Tokens split over one axis, the vocabulary over another: sums over ranks are where types say."""
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    of = case(32, 16, 64, vocab=60)
    x, table, labels = arrays(of, jnp.float32)

    def program(x: jax.Array, table: jax.Array, labels: jax.Array, of_loss: jax.Array) -> tuple:
        def function(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = fused_linear_cross_entropy(
                x, table, labels, axes=("tensor",), vocab=60, z_loss=0.1, keep=keep, **PLAIN
            )
            return found.loss, found.lse

        loss, pullback, lse = jax.vjp(function, x, table, has_aux=True)
        return loss, lse, *pullback(of_loss)

    tokens, part = P("fsdp"), P(None, "tensor")
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=(tokens, part, tokens, tokens), out_specs=(tokens, tokens, tokens, part)
    )
    results = jax.jit(mapped)(x, table, labels, jnp.asarray(of.of_loss, jnp.float32))
    wanted = losses(rounded(of._replace(of_lse=np.zeros(32)), jnp.float32), vocab=60, z_loss=0.1)
    assert max(worst(dict(zip(wanted, results, strict=True)), wanted).values()) <= 2e-6


def test_logits_of_more_than_a_chunk_are_had_only_where_they_are_kept():
    tokens, embed, columns = 64, 16, 4096
    x, table = jnp.zeros((tokens, embed), jnp.bfloat16), jnp.zeros((embed, columns), jnp.bfloat16)
    labels = jnp.zeros(tokens, jnp.int32)

    def loss(keep: bool) -> Any:
        options = KERNEL | {"keep": keep, "chunk_bytes": 2 * tokens * 512}
        return lambda x, table: fused_linear_cross_entropy(x, table, labels, **options).loss.sum()

    text = str(jax.make_jaxpr(jax.grad(loss(False), (0, 1)))(x, table))
    assert f"bf16[{tokens},512]" in text
    assert f"[{tokens},{columns}]" not in text
    text = str(jax.make_jaxpr(jax.grad(loss(True), (0, 1)))(x, table))
    assert f"bf16[{tokens},{columns}]" in text and "linear_cross_entropy_gradients" not in text
    assert f"[{tokens},{columns}]" not in str(jax.make_jaxpr(loss(True))(x, table)), "nothing is differentiated"


GPU = Request(
    16384, 4096, 152064, platform="gpu", dtype="bfloat16", compute_capability=9.0, gpu="NVIDIA H200", processors=132
)  # fmt: skip


def test_auto_takes_a_kernel_only_where_a_record_states_that_it_was_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: ())
    assert REGISTRY.choose("auto", GPU).name == "xla"
    assert "not been verified" in REGISTRY.choose("auto", GPU).rejected["triton"]
    assert not REGISTRY.choose("triton", GPU).verified
    kernel = "linear_cross_entropy/triton"
    record = Record(kernel, "NVIDIA H200", 132, "2026-11-22", tuple(versions().items()), digest(kernel))
    monkeypatch.setattr("pallas_kernels.verified.records", lambda: (record,))
    assert REGISTRY.choose("auto", GPU).name == "triton" and REGISTRY.choose("auto", GPU).verified


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"platform": "cpu", "compute_capability": None}, ("NVIDIA GPU", "platform is cpu")),
        ({"dtype": "float32"}, ("bfloat16 or float16", "not float32")),
        ({"compute_capability": 7.0}, ("compute capability 8.0", "has 7.0")),
        ({"columns": 2**31 // 4096}, ("2^31 elements",)),
    ],
)
def test_what_the_kernel_refuses_plain_jax_takes(change: dict[str, Any], parts: tuple[str, ...]):
    request = Request(**(vars(GPU) | change))
    with refused(*parts, error=ValueError):
        REGISTRY.choose("triton", request)
    assert REGISTRY.choose("auto", request).name == "xla"
    assert [entry.name for entry in REGISTRY.entries] == ["triton", "xla"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"table": np.zeros((5, 9))}, ("x (3, 4)", "table (5, 9)", "expected [tokens, embed]")),
        ({"labels": np.zeros(2, np.int32)}, ("labels", "int32[2]", "an integer for each row")),
        ({"labels": np.zeros(3)}, ("labels", "float32[3]")),
        ({"softcap": 0.0}, ("softcap is 0.0", "a positive number")),
        ({"vocab": 10}, ("vocab is 10", "1 to 9")),
        ({"implementation": "tritn"}, ("'tritn'", "expected one of auto, triton, xla")),
        ({"implementation": "triton"}, ("'triton'", "3 x 4 by 9 columns in float32 on cpu")),
    ],
)
def test_what_does_not_fit_is_reported_in_one_sentence(change: dict[str, Any], parts: tuple[str, ...]):
    arguments = {"x": np.zeros((3, 4)), "table": np.zeros((4, 9)), "labels": np.zeros(3, np.int32)} | change
    arguments |= {name: jnp.asarray(arguments[name]) for name in ("x", "table", "labels")}
    with refused(*parts, error=ValueError):
        fused_linear_cross_entropy(**arguments)
