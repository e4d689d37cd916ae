"""The user's configuration: one frozen dataclass per section of the YAML file, and `Config` of all.

The string under a field is its documentation: `docs/configuration.md` and `--help` are made from it.
Nothing here imports JAX, reads a file or looks at a device; checks across fields are in `jaxpar.config.validate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.config.schema.layout import AttentionConfig, MemoryConfig, ParallelConfig, PrecisionConfig
from jaxpar.config.schema.model import LoraConfig, ModelConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.config.schema.run import CheckpointConfig, DistributedConfig, RunConfig, WatchConfig
from jaxpar.config.schema.training import DataConfig, EvaluationConfig, LossConfig, OptimizerConfig


@dataclass(frozen=True)
class Config:
    """The configuration of a whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
