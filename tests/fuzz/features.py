"""Features that are combined at random: what each adds to the configuration of the small decoder."""

from dataclasses import dataclass, field
from typing import Any

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.schema.model import Pattern
from jaxpar.pipeline.schedules import SCHEDULES
from tests.layers.linear_attention.mixers64 import MIXERS
from tests.layers.linear_attention.test_mixers import hybrid, options_of
from tests.nonzero_gradients import FAMILIES, gemma
from tests.training.parity.test_experts import GPT_OSS, OTHERS, ROUTERS, WIDTH
from tests.training.parity.test_latent_attention import WIDTHS
from tests.training.parity.test_preferences import LOSSES

type Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Feature:
    """A feature."""

    group: str
    """A configuration has at most one feature of a group."""
    sections: Sections
    layout: bool = False
    """Whether it changes how a step is computed, and no number."""
    axes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes of mesh axes, and numbers of microbatches, that it is for."""


def _layouts(group: str, of: dict[str, Sections], **axes: tuple[int, ...]) -> dict[str, Feature]:
    return {name: Feature(group, sections, True, axes) for name, sections in of.items()}


def _models(group: str, of: dict[str, dict[str, Any]], **axes: tuple[int, ...]) -> dict[str, Feature]:
    return {name: Feature(group, {"model": model}, False, axes) for name, model in of.items()}


def _experts(router: str) -> dict[str, Any]:
    options = {"count": 8, "router": router, "width": WIDTH} | (ROUTERS | OTHERS)[router]
    return {"experts": ExpertsConfig(**options)} | (GPT_OSS if router == "gpt_oss" else {})


_EIGHT_BITS = MatmulOptions(exclude=("head", "router"), first_layers=0, last_layers=0)
_WIDE = {"embed": 128, "mlp": 128}
_SCHEDULES: dict[str, Sections] = {
    name: {"parallel": {"schedule": name, "virtual_stages": SCHEDULES[name].virtual_stages[0]}}
    for name in SCHEDULES if name != "one-stage"
}  # fmt: skip
_OVERLAP: dict[str, Any] = {
    "rows of the embedding": {"embedding_messages": "rows"}, "unrolled": {"layer_unroll": 2},
    "prefetched parts": {"weight_prefetch": "parts"},
}  # fmt: skip

FEATURES: dict[str, Feature] = {
    **_models("family", {name: FAMILIES[name] for name in FAMILIES if name != "gemma"}),
    **_models("family", {"latent": {"kv_heads": None, "latent_attention": LatentAttentionConfig(**WIDTHS)}}),
    **_models("kinds", {"gemma": gemma(layers=4)}),
    **_models("kinds", {name: options_of(name) | {"layers": 4} | hybrid(name) for name in MIXERS}),
    **_models("kinds", {"windows": {"kinds": {"local": {"window": 9}, "full": {}}, "pattern": Pattern(("local", "full"))}}),
    **_models("kinds", {"chunks": {"chunk": 11}, "window": {"window": 7}}),
    **_models("experts", {router: _experts(router) for router in (*ROUTERS, *OTHERS)}),
    **_models("sinks", {"sinks": {"attention_sinks": True}}),
    **_models("gate", {"gated": {"attention_gate": True}}),
    **_models("tied", {"tied": {"tied": True}}),
    **_models("dropout", {"dropout": {"dropout": 0.1}}),
    **_models("vocabulary", {"padded vocabulary": {"vocab": 61}}),
    **_models("keys", {"shared keys": {"kv_heads": 2}}),
    **_models("low rank", {"products": {"low_rank": {"up": 3, "value": 2}}}),
    "factors": Feature("lora", {"lora": {"rank": 4}, "run": {"init_from": "not opened"}}),
    "unpacked": Feature("packed", {"data": {"packed": False}}),
    "masked": Feature("objective", {"model": {"causal": False}}),
    **{name: Feature("objective", {"loss": {"name": name}}) for name in ("dpo", *LOSSES)},
    **{name: Feature("optimizer", {"optimizer": {"name": name}}) for name in ("muon", "lion", "adafactor")},
    "average": Feature("average", {"optimizer": {"ema": 0.9}}),
    **{f"moments {dtype}": Feature("moments", {"precision": {"moments": dtype}}) for dtype in ("bfloat16", "int8")},
    **{dtype: Feature("precision", {"precision": {"compute": dtype}}) for dtype in ("bfloat16", "float16")},
    **{
        recipe: Feature("precision", {"precision": {"matmul": recipe, "matmul_options": _EIGHT_BITS}, "model": _WIDE})
        for recipe in ("fp8_current", "fp8_delayed")
    },
    "islands": Feature("islands", {"islands": {"every": 2}}, axes={"islands": (2,)}),
    "fragments": Feature("islands", {"islands": {"every": 2, "fragments": 2, "mix": 0.5}}, axes={"islands": (2,)}),
    **_layouts("schedule", _SCHEDULES, pipe=(2,), microbatches=(4,)),
    **_layouts("ticks", {"branching": {"parallel": {"pipe_ticks": "branching"}}}, pipe=(2,), microbatches=(2, 4)),
    **_layouts("ends", {"shared ends": {"parallel": {"pipe_ends": "shared"}}}, pipe=(2, 4), microbatches=(4,)),
    **_layouts(
        "strategy",
        {name: {"parallel": {"context_strategy": name}} for name in ("allgather", "ring", "ulysses")},
        context=(2, 4),
    ),
    **_layouts("strategy", {"usp": {"parallel": {"context_strategy": "usp", "ulysses": 2}}}, context=(4,)),
    **_layouts(
        "order", {name: {"parallel": {"context_order": name}} for name in ("contiguous", "zigzag", "striped")}, context=(2, 4)
    ),
    **_layouts("remat", {f"remat {name}": {"memory": {"remat": name}} for name in ("none", "full", "selective")}),
    **_layouts("remat", {"offloaded": {"memory": {"remat": {"preset": "full", "layer_input": "offload"}}}}),
    **_layouts("fraction", {"half offloaded": {"memory": {"offload_fraction": 0.5}}}),
    **_layouts("residency", {"state on the host": {"memory": {"optimizer_offload": "host"}}}),
    **_layouts("residency", {"state in files": {"memory": {"optimizer_offload": "file"}}}),
    **_layouts(
        "residency", {"layers on the host": {"memory": {"optimizer_offload": "host", "weights_offload": "host"}}}
    ),
    **_layouts("tiles", {"tiles of the loss": {"memory": {"loss_tiles": 3}}, "tiles": {"memory": {"mlp_tiles": 3}}}),
    **_layouts("overlap", {name: {"parallel": {"overlap": options}} for name, options in _OVERLAP.items()}),
    **_layouts("overlap", {"ring of products": {"parallel": {"overlap": {"tensor": "ring"}}}}, tensor=(2, 4)),
    **_layouts(
        "overlap",
        {f"states {name}": {"parallel": {"overlap": {"state_messages": name}}} for name in ("ring", "pipelined")},
        context=(2, 4),
    ),
    **_layouts(
        "replicas",
        {"state over replicas": {"parallel": {"overlap": {"shard_state_over_replicas": True}}}},
        replica=(2, 4),
    ),
    **_layouts(
        "exchange",
        {name: {"parallel": {"experts": {"exchange": name}}} for name in ("all_to_all", "all_gather")},
        expert=(2, 4),
    ),
    **_layouts("exchange", {"hierarchical": {"parallel": {"experts": {"exchange": "hierarchical"}}}}, expert=(4,)),
    **_layouts("slices", {"slices": {"parallel": {"experts": {"slices": 2}}}}, expert=(2, 4)),
    **_layouts("slices", {"local rows first": {"parallel": {"experts": {"slices": 2, "own_rows": "first"}}}}, expert=(2, 4)),
    **_layouts("capacity", {"little room": {"parallel": {"experts": {"capacity": 1.0}}}}, expert=(2, 4)),
    **_layouts("shard", {"secondary shard": {"parallel": {"secondary_shard": 2, "zero": 3}}}, fsdp=(4,)),
}  # fmt: skip
"""By name."""

OF_EXPERTS = ("exchange", "slices", "capacity")
"""Groups of features that need those of the group `experts`."""
ROUNDED = "precision"
"""The group of features that round so coarsely that layouts differ, and that routers choose other experts."""
