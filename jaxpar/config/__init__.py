"""The user's configuration and the `Plan` record. Nothing in this package imports JAX or looks at a device."""

from jaxpar.config.axes import resolve_axes, virtual_devices_needed
from jaxpar.config.errors import UserError
from jaxpar.config.reading.loading import config_to_yaml, load_config
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.reading.sections import config_difference, config_from_dict, config_to_dict
from jaxpar.config.schema import (
    AttentionConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    DistributedConfig,
    EvaluationConfig,
    LoraConfig,
    LossConfig,
    MemoryConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
    WatchConfig,
)

__all__ = [
    "AttentionConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "LoraConfig",
    "LossConfig",
    "MemoryConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "RunConfig",
    "UserError",
    "WatchConfig",
    "config_difference",
    "config_from_dict",
    "config_to_dict",
    "config_to_yaml",
    "load_config",
    "resolve_axes",
    "virtual_devices_needed",
    "with_overrides",
]
