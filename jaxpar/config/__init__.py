"""What the user writes and the `Plan` record. Nothing in this package imports JAX or looks at a device."""

from jaxpar.config.errors import UserError
from jaxpar.config.schema import (
    AttentionConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    DistributedConfig,
    EvaluationConfig,
    MemoryConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)

__all__ = [
    "AttentionConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "MemoryConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "RunConfig",
    "UserError",
]
