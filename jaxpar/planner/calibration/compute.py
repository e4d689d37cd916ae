"""Products and attention of one device, as its training step would run them, for several tokens and tensor ranks; its
memory, and the copies between it and its host's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding

from jaxpar.attention.backends import attend_alone, choose_backend
from jaxpar.config import Config
from jaxpar.config.counting import head_dim, kv_heads, reach, value_dim
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import layer_cases
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.tables import NOTHING, Asked
from jaxpar.distributed.devices import Device
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.host import PINNED
from jaxpar.layout.choices.attention import attention_requests, score_blocks
from jaxpar.layout.stages import attention_settings
from jaxpar.memory.layer_shape import mean_keys
from jaxpar.pages.units import size
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.profile import Attended, Dtype, Product
from jaxpar.planner.search.space import broken_by_tensor
from pallas_kernels.attention import MaskInputs
from pallas_kernels.attention.registry import REGISTRY

type Arrays = tuple[jax.Array, ...]


def matmuls_of(config: Config, cluster: Cluster, tokens: Sequence[float], tensor: Sequence[int]) -> list[Asked]:
    """Products of one device, the smallest first: forward, gradients of inputs, and gradients of weights.

    Args:
        config: with the vocabulary set.
        cluster: of devices like the measured one.
        tokens: of a microbatch, in rows of the configuration.
        tensor: ranks that share a layer; those that the model cannot have are left out.
    """
    tables = NOTHING.recording()
    hardware = replace(hardware_of(cluster.gpu), measured=tables)
    device, network = device_of(cluster.gpu, hardware), network_of(cluster, hardware)
    vocab = config.model.vocab
    assert vocab is not None, "the vocabulary is known before shapes are"
    possible = [ranks for ranks in tensor if not any(broken_by_tensor(config.model, ranks))]
    for ranks in possible:
        for rows in tokens:
            sequence = round(rows * config.data.sequence_length)
            layout = Layout(tensor=ranks, precision=config.precision.compute)
            for case in layer_cases(config.model, sequence, layout, config.lora).values():
                layer_time(case, device, network)
                head_time(case, vocab, device, network)
    assert tables.asked is not None, "it records"
    products = [one for one in tables.asked if one.table.what == "matmul"]
    return sorted(products, key=lambda one: (one.sizes[0] * one.sizes[1] * one.sizes[2], one))


def measured_products(watch: Stopwatch, shapes: Iterable[Asked], compute: Dtype) -> list[Product]:
    """The products whose time is not bound by launches."""
    timed = []
    for table, (m, n, k), _ in shapes:
        item, adds = table.of
        product = Product(int(m), int(n), int(k), "float32" if item == 4 else compute, 0.0, bool(adds))
        words = f"matmul {product.m} x {product.n} x {product.k} in {product.dtype}{', added' if adds else ''}"
        seconds = watch.record_seconds(words, lambda product=product: _product(watch, product))
        if seconds is not None:
            timed.append(replace(product, seconds=seconds))
    return timed


def _product(watch: Stopwatch, product: Product) -> float:
    """Seconds. Random numbers: of equal ones a GPU takes less power, and so runs at a higher clock."""
    m, n, k = product.m, product.n, product.k
    precision = lax.Precision.HIGHEST if product.dtype == "float32" else None
    if not product.adds:
        return watch.loop(
            multiplied(precision), _random((m, n), product.dtype), *_randoms(product.dtype, (m, k), (k, n))
        )
    return watch.loop(added(precision), _random((m, n), "float32"), *_randoms(product.dtype, (k, m), (k, n)))


def multiplied(precision: lax.Precision | None) -> Callable[..., jax.Array]:
    """The step of a loop: a product, as of a layer's forward."""
    return lambda _, x, w: jnp.matmul(x, w, precision=precision)


def added(precision: lax.Precision | None) -> Callable[..., jax.Array]:
    """The same for the gradient of a weight, which is added to an accumulator."""
    rows = (((0,), (0,)), ((), ()))
    return lambda total, x, y: total + lax.dot_general(x, y, rows, precision, jnp.float32)


def measured_attention(watch: Stopwatch, config: Config, lengths: Sequence[int]) -> list[Attended]:
    """Attention of each kind of layers over a row of each length, by the backend that a run on this device takes."""
    rows = []
    for length in lengths:
        row_config = replace(config, data=replace(config.data, sequence_length=length, batch_size=1))
        for kind, request in attention_requests(row_config, jax.devices()[0], ()).items():
            model = kind_models(row_config.model)[kind]
            backend = choose_backend(row_config.attention.backend, request, kind=kind).name
            width = (head_dim(model) + value_dim(model)) // 2
            words = f"attention by {backend} over {length} tokens"
            forward = watch.record_seconds(
                words, lambda row=row_config, model=model, b=backend: _forward(watch, row, model, b)
            )
            if forward is None:
                continue
            rest = lambda row=row_config, model=model, b=backend, f=forward: _backward(watch, row, model, b) - f
            backward = watch.record_seconds(f"{words}, backward", rest)
            if backward is None:
                continue
            keys = mean_keys(length, reach(model), model.causal)
            row = Attended(
                backend, row_config.precision.compute, length, model.heads, kv_heads(model), width, keys, forward,
                backward,
            )  # fmt: skip
            if row not in rows:
                rows.append(row)
    return rows


def _forward(watch: Stopwatch, config: Config, model: ModelConfig, backend: str) -> float:
    attend, inputs = _attention(config, model, backend)
    return watch.loop(lambda _, *inputs: attend(*inputs), attend(*inputs), *inputs)


def _backward(watch: Stopwatch, config: Config, model: ModelConfig, backend: str) -> float:
    """Times forward and backward of attention together."""
    attend, inputs = _attention(config, model, backend)

    def both(_: object, gradient: jax.Array, *inputs: jax.Array) -> object:
        return jax.vjp(attend, *inputs)[1](gradient)

    return watch.loop(both, inputs, attend(*inputs), *inputs)


def _attention(config: Config, model: ModelConfig, backend: str) -> tuple[Callable[..., jax.Array], Arrays]:
    """Attention of queries, keys and values of one row, and these; a packed row is one document."""
    length, dtype = config.data.sequence_length, config.precision.compute
    heads, keys = (model.heads, head_dim(model)), (kv_heads(model), head_dim(model))
    blocks = score_blocks(config.attention, jax.devices()[0])
    settings = attention_settings(config, model, (blocks["query_block"], blocks["kv_block"]), None, neighbours=True)
    values = (kv_heads(model), value_dim(model))
    inputs = _randoms(dtype, *((1, length, *shape) for shape in (heads, keys, values)))
    indices = jnp.arange(length)[None]
    segments = jnp.ones_like(indices) if config.data.packed else None
    sinks = jnp.zeros(model.heads) if model.attention_sinks else None

    @jax.jit
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        tokens = MaskInputs(indices, indices, segments, segments)
        return attend_alone(REGISTRY[backend], settings, q, k, v, tokens, sinks)

    return attend, inputs


def memory_rate(watch: Stopwatch, numbers: int) -> float | None:
    """Bytes a second of the mean of two arrays of so many float32 numbers over one of them: two are read and one is
    written."""
    arrays = jnp.zeros(numbers), jnp.ones(numbers)
    moved = 12 * numbers
    seconds = watch.record_seconds(f"memory, {size(moved)} by one kernel", lambda: watch.loop(mean, *arrays))
    return None if seconds is None else moved / seconds


def mean(a: jax.Array, b: jax.Array) -> jax.Array:
    """The step of a loop whose numbers stay finite."""
    return 0.5 * (a + b)


def why_no_copies(device: Device) -> str | None:
    """The reason why nothing can be copied to pinned memory of the host; None where it can."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    return None if PINNED in kinds else f"the device has no memory of the kind {PINNED}, only {', '.join(kinds)}"


def copy_rate(watch: Stopwatch, device: Device, moved: int) -> float | None:
    """Bytes a second of copies of so many to pinned memory of the host, from it, and both ways at once: the least of
    these, since a step has all three. None where the host has no such memory, or nothing could be measured."""
    if why_no_copies(device) is not None:
        return None
    here, there = SingleDeviceSharding(device), SingleDeviceSharding(device, memory_kind=PINNED)
    out = jax.jit(lambda x: jax.device_put(x, there), out_shardings=there)
    back = jax.jit(lambda x: jax.device_put(x, here), out_shardings=here)
    both = jax.jit(lambda x, y: (jax.device_put(x, there), jax.device_put(y, here)), out_shardings=(there, here))
    array = jax.device_put(jnp.ones(moved // 4), here)
    pinned = jax.device_put(array, there)
    runs = (("to the host", out, (array,)), ("from it", back, (pinned,)), ("both ways", both, (array, pinned)))
    spans = [
        watch.record_seconds(f"copy of {size(moved)} {way}", partial(watch.calls, function, *arrays))
        for way, function, arrays in runs
    ]
    return min((moved / span for span in spans if span is not None), default=None)


def _randoms(dtype: str, *shapes: tuple[int, ...]) -> Arrays:
    return tuple(_random(shape, dtype) for shape in shapes)


def _random(shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, dtype)
