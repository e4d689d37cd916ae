"""Features that are combined at random: what each adds to the configuration of the small decoder."""

from dataclasses import dataclass
from typing import Any

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.config.mappings.policy import PolicyConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.pipeline.schedules import SCHEDULES
from tests.layers.linear_attention.mixers64 import MIXERS
from tests.layers.linear_attention.test_mixers import hybrid, options_of
from tests.nonzero_gradients import FAMILIES, LOCAL_AND_GLOBAL, gemma
from tests.training.parity.test_beside_the_stream import MODELS as BESIDE
from tests.training.parity.test_experts import GPT_OSS, OTHERS, ROUTERS, WIDTH
from tests.training.parity.test_latent_attention import WIDTHS
from tests.training.parity.test_preferences import LOSSES

type Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Feature:
    """A feature. A configuration has at most one of a group."""

    group: str
    sections: Sections
    layout: bool
    """Whether it changes how a step is computed, and no number."""
    axes: dict[str, tuple[int, ...]]
    """Sizes of mesh axes, and numbers of microbatches, that it is for."""


_LATENT = {"kv_heads": None, "latent_attention": LatentAttentionConfig(**WIDTHS)}
_WINDOWS = {"kinds": LOCAL_AND_GLOBAL, "pattern": Pattern(("local", "global"))}
_TAUGHT = {"name": "distill", "reference": "not opened", "top_k": 3, "temperature": 2.0}
_DRAWN = {"name": "grpo", "reference": "not opened", "policy": PolicyConfig(kl="k3")}
ANSWERS = {"source": "prompts", "path": "digits"}
"""The data of losses of drawn answers."""
_EIGHT_BITS = {"matmul_options": MatmulOptions(exclude=("head", "router"), first_layers=0, last_layers=0)}
_MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "family": {name: FAMILIES[name] for name in FAMILIES if name != "gemma"} | {"latent": _LATENT},
    "kinds": {"gemma": gemma(layers=4), "windows": _WINDOWS, "window": {"window": 7}, "chunks": {"chunk": 11}}
    | {"inputs of layers": BESIDE["one"], "streams and inputs": BESIDE["several"]}
    | {name: options_of(name) | {"layers": 4} | hybrid(name) for name in MIXERS},
    "experts": {
        name: {"experts": ExpertsConfig(**{"count": 8, "router": name, "width": WIDTH} | options)}
        | (GPT_OSS if name == "gpt_oss" else {})
        for name, options in (ROUTERS | OTHERS).items()
    },
    "sinks": {"sinks": {"attention_sinks": True}}, "gate": {"gated": {"attention_gate": True}},
    "tied": {"tied": {"tied": True}}, "dropout": {"dropout": {"dropout": 0.1}},
    "keys": {"shared keys": {"kv_heads": 2}}, "vocabulary": {"padded vocabulary": {"vocab": 61}},
    "rank": {"products": {"low_rank": {"up": 3, "value": 2}}},
}  # fmt: skip
_NUMBERS: dict[str, dict[str, Sections]] = {
    **{group: {name: {"model": one} for name, one in of.items()} for group, of in _MODELS.items()},
    "lora": {"factors": {"lora": {"rank": 4}, "run": {"init_from": "not opened"}}},
    "packed": {"unpacked": {"data": {"packed": False}}},
    "objective": {name: {"loss": {"name": name}} for name in ("dpo", *LOSSES)}
    | {"masked": {"model": {"causal": False}}, "distill": {"loss": _TAUGHT}}
    | {"grpo": {"loss": _DRAWN, "data": ANSWERS}, "gspo": {"loss": {"name": "gspo"}, "data": ANSWERS}},
    "optimizer": {name: {"optimizer": {"name": name}} for name in ("muon", "lion", "adafactor")},
    "storage": {"stored in bfloat16": {"precision": {"storage": "bfloat16"}}},
    "average": {"average": {"optimizer": {"ema": 0.9}}},
    "moments": {f"moments {dtype}": {"precision": {"moments": dtype}} for dtype in ("bfloat16", "int8")},
    "precision": {dtype: {"precision": {"compute": dtype}} for dtype in ("bfloat16", "float16")}
    | {
        recipe: {"precision": {"matmul": recipe} | _EIGHT_BITS, "model": {"embed": 128, "mlp": 128}}
        for recipe in ("fp8_current", "fp8_delayed")
    },
    "islands": {"whole": {"islands": {"every": 2}}, "fragments": {"islands": {"every": 2, "fragments": 2, "mix": 0.5}}},
}  # fmt: skip
_PARALLEL: dict[str, dict[str, dict[str, Any]]] = {
    "schedule": {
        name: {"schedule": name, "virtual_stages": kind.virtual_stages[0]}
        for name, kind in SCHEDULES.items() if name != "one-stage"
    },
    "stages": {"unequal stages": {"stage_layers": (1, 3)}},
    "ticks": {"branching": {"pipe_ticks": "branching"}}, "ends": {"shared ends": {"pipe_ends": "shared"}},
    "strategy": {name: {"context_strategy": name} for name in ("allgather", "ring", "ulysses", "usp")},
    "order": {name: {"context_order": name} for name in ("contiguous", "zigzag", "striped")},
    "overlap": {
        name: {"overlap": option}
        for name, option in {
            "rows of the embedding": {"embedding_messages": "rows"}, "unrolled": {"layer_unroll": 2},
            "prefetched parts": {"weight_prefetch": "parts"}, "ring of products": {"tensor": "ring"},
            "ring of states": {"state_messages": "ring"}, "pipelined states": {"state_messages": "pipelined"},
        }.items()
    },
    "replicas": {"state over replicas": {"overlap": {"shard_state_over_replicas": True}}},
    "exchange": {name: {"experts": {"exchange": name}} for name in ("all_to_all", "all_gather", "hierarchical")},
    "slices": {
        "slices": {"experts": {"slices": 2}}, "local rows first": {"experts": {"slices": 2, "own_rows": "first"}}
    },
    "capacity": {"little room": {"experts": {"capacity": 1.0}}}, "shard": {"hpZ shard": {"hpz": 2}},
}  # fmt: skip
_MEMORY: dict[str, dict[str, dict[str, Any]]] = {
    "remat": {f"remat {name}": {"remat": name} for name in ("none", "full", "selective")}
    | {"offloaded": {"remat": {"preset": "full", "layer_input": "offload"}}},
    "fraction": {"half offloaded": {"offload_fraction": 0.5}},
    "residency": {
        "state on the host": {"optimizer_offload": "host"}, "state in files": {"optimizer_offload": "file"},
        "layers on the host": {"optimizer_offload": "host", "weights_offload": "host"},
    },
    "tiles": {"tiles of the loss": {"loss_tiles": 3}, "tiles": {"mlp_tiles": 3}},
}  # fmt: skip
_LAYOUTS: dict[str, dict[str, Sections]] = {
    group: {name: {section: one} for name, one in of.items()}
    for section, groups in (("parallel", _PARALLEL), ("memory", _MEMORY)) for group, of in groups.items()
}  # fmt: skip
_AXES: dict[str, dict[str, tuple[int, ...]]] = {
    **{name: {"pipe": (2,), "microbatches": (4,)} for name in ("schedule", "stages", "ticks", "ends")},
    **{name: {"context": (2, 4)} for name in ("strategy", "order", "ring of states", "pipelined states")},
    **{name: {"expert": (2, 4)} for name in ("exchange", "slices", "capacity")}, "hierarchical": {"expert": (4,)},
    "islands": {"islands": (2,)}, "replicas": {"replica": (2, 4)}, "ring of products": {"tensor": (2, 4)},
    "usp": {"context": (4,)}, "shard": {"fsdp": (4,)},
}  # fmt: skip
"""By name, or else by group."""

FEATURES = {
    name: Feature(group, sections, layout, _AXES.get(name, _AXES.get(group, {})))
    for layout, groups in ((False, _NUMBERS), (True, _LAYOUTS))
    for group, of in groups.items() for name, sections in of.items()
}  # fmt: skip
OF_EXPERTS = ("exchange", "slices", "capacity")
"""Groups of features that need one of the group `experts`."""
ROUNDED = "precision"
"""The group of features that round so coarsely that layouts differ, and that routers choose other experts."""
