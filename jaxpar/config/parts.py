"""Registries of what the configuration can name: layer parts, objectives, optimizers and data sources; and the
features that a step takes.

An implementation is named as `module:name`, and imported when it is first used: a run without a feature imports nothing
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

type Blocks = str | tuple[str, ...]
"""One block of a layer, or several one after another, or none."""

MIXERS: dict[str, Blocks] = {
    "attention": "jaxpar.layers.attention:Attention",
    "latent_attention": "jaxpar.layers.latent_attention:LatentAttention",
    "lightning": "jaxpar.layers.linear_attention.lightning:Lightning",
    "retention": "jaxpar.layers.linear_attention.retention:Retention",
    "gla": "jaxpar.layers.linear_attention.gla:GatedLinearAttention",
    "relu_gla": "jaxpar.layers.linear_attention.relu_gla:ReluGatedLinearAttention",
    "gated_deltanet": "jaxpar.layers.linear_attention.gated_deltanet:GatedDeltaNet",
    "kimi_delta": "jaxpar.layers.linear_attention.kimi_delta:KimiDelta",
    "mamba2": "jaxpar.layers.linear_attention.mamba2:Mamba2",
    "short_conv": "jaxpar.layers.linear_attention.short_conv:ShortConvolution",
    "none": (),
}
"""The values of `model.mixer`, each with the blocks that it names."""

INPUTS: dict[str, str] = {"tokens": "jaxpar.layers.inputs.token_embedding:TokenEmbedding"}
"""The values of `model.input`, each with the block that it names."""

FEED_FORWARDS: dict[str, Blocks] = {
    "swiglu": "jaxpar.layers.feed_forward.gated:SwiGLU",
    "clamped_swiglu": "jaxpar.layers.feed_forward.gated:ClampedSwiGLU",
    "geglu": "jaxpar.layers.feed_forward.gated:GeGLU",
    "exact_geglu": "jaxpar.layers.feed_forward.gated:ExactGeGLU",
    "gelu": "jaxpar.layers.feed_forward.plain:GELU",
    "exact_gelu": "jaxpar.layers.feed_forward.plain:ExactGELU",
    "relu2": "jaxpar.layers.feed_forward.plain:SquaredReLU",
    "xielu": "jaxpar.layers.feed_forward.xielu:XIELU",
    "none": (),
}
"""The values of `model.activation`, each with the blocks that it names."""


@dataclass(frozen=True)
class NoOptions:
    """Options of an entry that has no settings."""


FEATURES: dict[str, str] = {
    "experts": "jaxpar.layers.experts.feed_forward:Experts",
    "normed_experts": "jaxpar.layers.experts.normed:NormedExperts",
    "shared_attention": "jaxpar.layers.beside.shared_attention:SharedAttention",
    "low_rank_factors": "jaxpar.layers.adapters:LowRank",
    "quantized_groups": "jaxpar.layers.matmul_formats:quantized_groups",
    "adapted_ops": "jaxpar.layers.ops.adapted:AdaptedOps",
    "quantized_ops": "jaxpar.layers.ops.quantized:QuantizedOps",
    "spiking_ops": "jaxpar.layers.ops.spikes:SpikingOps",
    "quantized_state": "jaxpar.layout.quantized_matmuls:carried",
}
"""The parts of features that a step takes where its configuration asks for them: the blocks of `model.experts` and of
`model.keys_of`, the
`Adaptation` of frozen weights, the programs, ops and carried state of `precision.matmul`, and the ops of
`precision.spikes` and of several adapters."""


@dataclass(frozen=True)
class LossEntry:
    """An objective that `loss.name` can select."""

    made_by: str
    """`module:name` of a subclass of `jaxpar.runtime.objective.Objective`."""
    keys: tuple[str, ...] = ()
    """Keys of `loss` that it reads."""
    likelihood: bool = False
    """Whether it is the negative log-likelihood of tokens: `model.z_loss` is a term of it, and a bigram model has one
    to compare it with."""
    answers: str | None = None
    """`PAIRS_FORMAT` or `LABELS_FORMAT`, if it is of such answers; with log-probabilities of a reference model if it
    reads `loss.reference`."""
    rewards: bool = False
    """Whether it is of answers that the model draws, and their rewards."""
    judged: bool = True
    """Whether its value says how well the model does: that of rewards is about 0 whatever the model learns."""
    rows: str = ""
    """`module:function` of configuration, data and the model of `loss.reference`, to the data whose rows have the
    fields that it reads; empty where they have them."""
    masked: bool = False
    """Whether it is of masked tokens, which the model sees from both sides (`model.causal: false`)."""
    teacher: bool = False
    """Whether it has several labels of each token, those of a teacher, `loss.reference`."""


CHAT_FORMAT, PAIRS_FORMAT, LABELS_FORMAT = "chat", "preference", "labelled"
"""Formats of files of conversations, of pairs of them, and of marked ones, as `python -m jaxpar.prepare --format` takes
them."""
ANSWERS_FORMATS = PAIRS_FORMAT, LABELS_FORMAT

OBJECTIVES: dict[str, LossEntry] = {
    "cross_entropy": LossEntry("jaxpar.objectives.tokens:CrossEntropy", likelihood=True),
    "dpo": LossEntry(
        "jaxpar.objectives.dpo:DirectPreference", ("beta", "label_smoothing", "reference"), answers=PAIRS_FORMAT
    ),
    "simpo": LossEntry(
        "jaxpar.objectives.simpo:SimplePreference", ("beta", "gamma", "label_smoothing"), answers=PAIRS_FORMAT
    ),
    "orpo": LossEntry("jaxpar.objectives.orpo:OddsRatioPreference", ("beta",), answers=PAIRS_FORMAT),
    "kto": LossEntry(
        "jaxpar.objectives.kto:MarkedPreference",
        ("beta", "desirable_weight", "undesirable_weight", "reference"),
        answers=LABELS_FORMAT,
    ),
    "distill": LossEntry(
        "jaxpar.objectives.distill:Distillation",
        ("teacher_weight", "top_k", "temperature", "reference"),
        rows="jaxpar.training.teacher:taught",
        teacher=True,
    ),
    "masked": LossEntry(
        "jaxpar.objectives.masked:MaskedTokens",
        ("rate", "mask_token", "unmasked", "spans", "contrastive"),
        rows="jaxpar.data.masked:masked_data",
        masked=True,
    ),
    **dict.fromkeys(
        ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "aipo", "rloo"),
        LossEntry("jaxpar.objectives.policy:PolicyGradient", ("reference", "policy"), rewards=True, judged=False),
    ),
}
"""The objectives by their name in `loss.name`."""


def objectives_of(answers: str) -> list[str]:
    """Values of `loss.name` that train on pairs of answers, or on marked ones."""
    return [name for name, entry in OBJECTIVES.items() if entry.answers == answers]


@dataclass(frozen=True)
class Optimizer:
    """An update rule that `optimizer.name` can select."""

    rule: str
    """`module:function` from a `jaxpar.optim.rule.RuleRequest` to the `Rule` of that weight."""
    options: str = "jaxpar.config.parts:NoOptions"
    """`module:name` of the dataclass of its `optimizer.options`."""
    matrix_rate: bool = False
    """Whether `optimizer.matrix_learning_rate` is that of the layers' matrices."""
    rounds: bool = True
    """Whether state is stored as `precision.moments` says; else that must be float32."""
    by_layers: bool = True
    """Whether an update of some layers has the same bits as that of all of them."""


_OPTIONS = "jaxpar.config.mappings.optimizers"

OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": Optimizer("jaxpar.optim.adamw:adamw", f"{_OPTIONS}:AdamWOptions"),
    "muon": Optimizer("jaxpar.optim.muon:muon", f"{_OPTIONS}:MuonOptions", matrix_rate=True),
    "lion": Optimizer("jaxpar.optim.lion:lion", f"{_OPTIONS}:LionOptions"),
    "adafactor": Optimizer(
        "jaxpar.optim.adafactor:adafactor", f"{_OPTIONS}:AdafactorOptions", rounds=False, by_layers=False
    ),
}
"""The update rules by their name in `optimizer.name`."""


@dataclass(frozen=True)
class DataSource:
    """A source of data."""

    opener: str
    """`module:function` from (`DataConfig`, `model.vocab`, seed) to the opened data."""
    keys: tuple[str, ...] = ()
    """Keys of `data` that this source reads and some others do not."""
    pairs: bool = False
    """Whether its documents can be pairs of answers."""
    codec: str | None = None
    """`module:name` of a function from `DataConfig` to what reads and writes its texts, without opening the data; None
    for sources whose folders have a tokenizer, or which are opened for it."""
    run: str = "jaxpar.training.run.run:Run"
    """`module:name` of the run that takes its steps: `Run`, or a subclass that makes its batches while it trains."""


DATA_SOURCES: dict[str, DataSource] = {
    "stdlib": DataSource("jaxpar.data.stdlib:open_stdlib"),
    "tokens": DataSource(
        "jaxpar.data.token_sources:open_tokens",
        keys=(
            "path",
            "sources",
            "later_sources",
            "max_epochs",
            "validation_path",
            "validation",
            "separator",
            "long_conversations",
        ),
        pairs=True,
    ),
    "stream": DataSource(
        "jaxpar.data.streaming.source:open_stream",
        keys=("path", "validation_path", "tokenizer", "end_token", "text_key", "validation_fraction", "workers"),
        codec="jaxpar.data.streaming.source:StreamCodec",
    ),
    "synthetic": DataSource("jaxpar.data.synthetic:open_synthetic"),
    "prompts": DataSource(
        "jaxpar.rl.prompts:open_prompts",
        keys=("path", "validation_path", "tokenizer", "end_token"),
        codec="jaxpar.rl.prompts:codec_of",
        run="jaxpar.rl.run:RolloutRun",
    ),
    "demonstrations": DataSource(
        "jaxpar.rl.demonstrations:open_demonstrations",
        keys=("path", "validation_path", "tokenizer", "end_token", "long_conversations"),
        codec="jaxpar.rl.prompts:codec_of",
    ),
}
"""The data sources by their name in `data.source`."""

ISLAND_RUN = "jaxpar.training.island_jobs.run:IslandRun"
"""The run of one of several jobs, with `islands.folder`."""


@dataclass(frozen=True)
class MembersOf:
    """Stands beside the type of a mapping, as in `Annotated[dict[str, object], MembersOf(...)]`, whose members another
    field of the same record decides."""

    record: Callable[[Mapping[str, Any]], type | None]
    """Function from the fields of that record to the dataclass of its members; None leaves them."""


def feature(name: str) -> Any:
    """An entry of `FEATURES`."""
    return implementation(FEATURES[name])


def implementations(places: Blocks) -> tuple[Any, ...]:
    """The classes at one place or several, in order."""
    return tuple(implementation(path) for path in ([places] if isinstance(places, str) else places))


@cache
def implementation(path: str) -> Any:
    """The class or function at `module:name`."""
    module, name = path.split(":")
    return getattr(import_module(module), name)
