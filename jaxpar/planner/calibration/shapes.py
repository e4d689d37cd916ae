"""The matmuls that the time model asks for: of a model's layers and head, for several tokens and tensor ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxpar.config import Config
from jaxpar.config.kinds import kind_models
from jaxpar.cost.hardware_model import nearest_hardware
from jaxpar.cost.head import head_time
from jaxpar.cost.layer import layer_time
from jaxpar.cost.layer_case import layer_case
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.tables import NOTHING, Asked
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.search.space import broken_by_tensor


def matmuls_of(config: Config, cluster: Cluster, tokens: Sequence[float], tensor: Sequence[int]) -> list[Asked]:
    """Products of one device, the smallest first: forward, gradients of inputs, and gradients of weights.

    Args:
        config: with the vocabulary set.
        cluster: of devices like the measured one.
        tokens: of a microbatch, in rows of the configuration.
        tensor: ranks that share a layer; those that the model cannot have are left out.
    """
    tables = NOTHING.recording()
    hardware = replace(nearest_hardware(cluster.gpu), measured=tables)
    device, network = device_of(cluster.gpu, hardware), network_of(cluster, hardware)
    vocab = config.model.vocab
    assert vocab is not None, "the vocabulary is known before shapes are"
    possible = [ranks for ranks in tensor if not any(broken_by_tensor(config.model, ranks))]
    for model in kind_models(config.model).values():
        for ranks in possible:
            for rows in tokens:
                sequence = round(rows * config.data.sequence_length)
                case = layer_case(model, sequence, 1, ranks, 1, "allgather", config.precision.compute, config.lora)
                layer_time(case, device, network)
                head_time(case, vocab, device, network)
    assert tables.asked is not None, "it records"
    products = [one for one in tables.asked if one.table.what == "matmul"]
    return sorted(products, key=lambda one: (one.sizes[0] * one.sizes[1] * one.sizes[2], one))
