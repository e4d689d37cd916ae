"""Linear attention on the device: the kernels against float64, and their speed beside that of plain XLA and JLA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import timed_ways
from jaxpar.layers.linear_attention.mixer import Sizes, declare_recurrence
from jaxpar.layers.linear_attention.recurrence import Streams, prepare
from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.linear_attention import CHUNK, derivative, reference, scan_chunks
from pallas_kernels.linear_attention.registry import REGISTRY, Request

KERNEL = "linear_attention/mosaic"
RESULTS = ("out", "end", "d_query", "d_key", "d_value", "d_decay", "d_rate", "d_state")


@dataclass(frozen=True)
class Case:
    """Rows of tokens with documents of about the same length."""

    name: str
    rows: int
    tokens: int
    """A multiple of 64."""
    heads: int
    key: int
    value: int
    delta: bool
    by_key: bool
    """A decay of each key dim."""
    gate: float = 1.0
    """The strongest log decay is minus this."""
    documents: int = 1

    def arrays(self) -> tuple[Streams, tuple[jax.Array, jax.Array], jax.Array, tuple[jax.Array, jax.Array]]:
        """Streams [chunks, rows, chunk, heads, ...], documents, the first state, and gradients of outputs and end."""
        keys = iter(jax.random.split(jax.random.key(0), 8))
        shape = self.tokens // CHUNK, self.rows, CHUNK, self.heads
        normal = lambda *sizes: jax.random.normal(next(keys), sizes, jnp.float32)
        unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        query, key = normal(*shape, self.key) * self.key**-0.5, unit(normal(*shape, self.key))
        value = normal(*shape, self.value)
        decays = *shape, self.key if self.by_key else 1
        decay = -self.gate * 10 ** jax.random.uniform(next(keys), decays, minval=-3, maxval=0)
        rate = jax.random.uniform(next(keys), shape) if self.delta else None
        of_token = jnp.arange(self.tokens) * self.documents // self.tokens
        documents = jnp.broadcast_to(of_token.reshape(-1, 1, CHUNK), shape[:3])
        before = jnp.concatenate([documents[:1, :, 0], documents[:-1, :, -1]])
        state = self.rows, self.heads, self.key, self.value
        query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
        d_out = normal(shape[0], self.rows, self.heads, CHUNK, self.value)
        return Streams(query, key, value, decay, rate), (documents, before), normal(*state), (d_out, normal(*state))

    def flops(self, way: str) -> float:
        """FLOPs of the chunked form; the backward has two products for each."""
        sizes = Sizes(self.heads, self.heads, self.key, self.value, taps=4, least_step=0.0, norm_epsilon=1e-6)
        forward = declare_recurrence(sizes, self.key if self.by_key else 1, self.delta).chunked
        return self.rows * self.tokens * forward * {"forward": 1.0, "both": 3.0}[way]

    def least_bytes(self, way: str) -> float:
        """Bytes that any form reads and writes: streams and outputs, in the backward again with their gradients."""
        decays = 4 * (self.key if self.by_key else 1) + (4 if self.delta else 0)
        inputs, outputs = 2 * (2 * self.key + self.value) + decays, 2 * self.value
        forward, backward = inputs + outputs, 2 * inputs + outputs
        return self.rows * self.tokens * self.heads * (forward + (backward if way == "both" else 0))

    @property
    def results(self) -> tuple[str, ...]:
        """Names among `RESULTS`: without the delta rule there are no rates."""
        return tuple(name for name in RESULTS if name != "d_rate" or self.delta)

    def request(self, device: Any) -> Request:
        chunks, heads = self.tokens // CHUNK, self.rows * self.heads
        return Request(chunks, heads, CHUNK, self.key, self.value, self.delta, dtype="bfloat16", **device._asdict())


CHECKED = (
    Case("one chunk", 1, 64, 1, 64, 64, delta=False, by_key=False),
    Case("delta rule, wide", 2, 512, 3, 256, 128, delta=True, by_key=False, documents=5),
    Case("a decay of each key dim", 1, 1024, 4, 128, 128, delta=False, by_key=True, documents=3),
    Case("Kimi delta, strong decays", 2, 640, 4, 128, 128, delta=True, by_key=True, gate=80.0),
    Case("keys of 192", 1, 256, 8, 192, 64, delta=False, by_key=False, gate=80.0),
    Case("more programs than fit", 8, 512, 40, 64, 128, delta=True, by_key=False),
)
DRY = (Case("small", 1, 128, 1, 64, 64, delta=True, by_key=False),)
TIMED = (
    Case("gated DeltaNet, 8k", 2, 8192, 32, 128, 128, delta=True, by_key=False),
    Case("gated DeltaNet, 64k", 1, 65536, 16, 128, 128, delta=True, by_key=False, documents=64),
    Case("Kimi delta, 8k", 2, 8192, 32, 128, 128, delta=True, by_key=True),
    Case("Mamba-2, 8k", 2, 8192, 32, 128, 64, delta=False, by_key=False),
    Case("GLA, 8k", 2, 8192, 8, 256, 256, delta=False, by_key=True),
)


def check(journal: Journal) -> None:
    """Outputs and gradients against float64: at most twice the error of the same steps in plain JAX, in bfloat16."""
    for case in DRY if journal.dry else CHECKED:
        check_case(journal, case)


def check_case(journal: Journal, case: Case) -> None:
    """Adds the row of one case."""
    device = INTERPRETER if journal.dry else target()
    refused = REGISTRY["mosaic"].supports(case.request(device))
    add_check(journal, KERNEL, case.name, refused, partial(_compare, case, journal.dry))


def program(case: Case, name: str, interpret: bool = False) -> Callable[..., tuple[jax.Array, ...]]:
    """`case.arrays` -> `RESULTS`, without those that the case lacks, by an implementation, or by `plain` in bfloat16;
    not jitted in the interpreter."""
    named = partial(scan_chunks, implementation=name, interpret=interpret)
    scan = partial(derivative.scan_chunks, kernels=reference) if name == "plain" else named

    def run(streams: Streams, fixed: Any, state: jax.Array, gradients: Any) -> tuple[jax.Array, ...]:
        made, pull = jax.vjp(lambda streams, state: scan(prepare, streams, fixed, state), streams, state)
        return tuple(jax.tree.leaves((made, pull(gradients))))

    return run if interpret else jax.jit(run)


def _compare(case: Case, dry: bool) -> dict[str, Any]:
    arrays, run = case.arrays(), program(case, "mosaic", dry)
    have, again, low = (jax.device_get(each(*arrays)) for each in (run, run, program(case, "plain")))
    return compared(case.results, have, again, low, _float64(arrays))


def _float64(arrays: Any) -> list[np.ndarray]:
    """Token by token, on the CPU."""
    (streams, (documents, before), state, gradients) = jax.device_get(arrays)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = lambda x: jnp.asarray(x, jnp.float64)
        streams, state, gradients = jax.tree.map(wide, (streams, state, gradients))
        last = jnp.concatenate([jnp.asarray(before)[:, :, None], jnp.asarray(documents)[:, :, :-1]], axis=2)
        continues = jnp.moveaxis(documents == last, 2, 1)

        def token(state: jax.Array, xs: tuple[Streams, jax.Array]) -> tuple[jax.Array, jax.Array]:
            (q, k, v, g, rate), continues = xs
            state = jnp.where(continues[:, None, None, None], jnp.exp(g)[..., None] * state, 0)
            if rate is not None:
                v = rate[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
            state = state + k[..., None] * v[..., None, :]
            return state, jnp.einsum("bhk,bhkv->bhv", q, state)

        def run(streams: Streams, state: jax.Array) -> tuple[jax.Array, jax.Array]:
            by_token = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:]), streams)
            end, out = jax.lax.scan(token, state, (by_token, continues.reshape(-1, continues.shape[2])))
            out = out.reshape(-1, CHUNK, *out.shape[1:])
            return jnp.moveaxis(out, 1, 3), end

        made, pull = jax.vjp(run, streams, state)
        return [np.asarray(x) for x in jax.tree.leaves((made, pull(gradients)))]


def measure(journal: Journal) -> None:
    """TFLOP/s of the forward, and of forward and backward, by the kernels, plain XLA, and JLA where it is installed."""
    for case in DRY if journal.dry else TIMED:
        if journal.ended(case.name) or not journal.has_time(case.name, 20):
            continue
        journal.begin(case.name)
        _measure_case(journal, case)
        journal.add("over", case=case.name)


def _measure_case(journal: Journal, case: Case) -> None:
    row = {"case": case.name, "rows": case.rows, "tokens": case.tokens, "heads": case.heads}
    row |= {"key": case.key, "value": case.value}
    arrays = case.arrays()
    paths = {name: _ways(scan) for name, scan in _paths(case).items()}
    for name, way, seconds in timed_ways(journal, "linear_attention", row, paths, arrays):
        tflops, rate = case.flops(way) / seconds["seconds"] / 1e12, case.least_bytes(way) / seconds["seconds"]
        journal.add("linear_attention", **row, by=name, way=way, tflops=tflops, bytes_per_second=rate, **seconds)


type _Scan = Callable[[Streams, Any, jax.Array], tuple[jax.Array, jax.Array]]


def _ways(scan: _Scan) -> dict[str, Callable[..., Any]]:
    """The forward, and forward and backward, of a function of streams, documents and the first state."""

    def both(streams: Streams, fixed: Any, state: jax.Array, gradients: Any) -> Any:
        made, pull = jax.vjp(lambda streams, state: scan(streams, fixed, state), streams, state)
        return made, pull(gradients)

    return {"forward": lambda streams, fixed, state, gradients: scan(streams, fixed, state), "both": both}


def _paths(case: Case) -> dict[str, _Scan]:
    ours = lambda name: partial(lambda name, *xs: scan_chunks(prepare, *xs, implementation=name), name)
    found = {"mosaic": ours("mosaic"), "xla": ours("xla")}
    return found | ({"JLA": _jla(case)} if find_spec("jla") is not None else {})


def _jla(case: Case) -> _Scan:
    """The kernels of jax-linear-attention, whose arrays are [rows, tokens, heads, ...]."""
    jla: Any = import_module("jla.ops")
    kind = {(False, False): "simple_gla", (False, True): "gla", (True, False): "gated_deltanet", (True, True): "kda"}

    def scan(streams: Streams, fixed: Any, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        joined = lambda x: jnp.moveaxis(x, 0, 1).reshape(case.rows, case.tokens, *x.shape[3:])
        q, k, v, g, rate = jax.tree.map(joined, streams)
        gates = {"g": g if case.by_key else g[..., 0]} | ({} if rate is None else {"beta": rate})
        out, end = jla.linear_attention(
            kind[case.delta, case.by_key], q, k, v, impl="mosaic_gpu", scale=1.0, initial_state=state,
            output_final_state=True, segment_ids=joined(fixed[0]), **gates,
        )  # fmt: skip
        cut = out.astype(jnp.float32).reshape(case.rows, -1, CHUNK, case.heads, case.value)
        return jnp.moveaxis(cut, (1, 3), (0, 2)), end

    return scan
