"""Checks of mesh axes, of the sizes that they divide, and of the pipeline."""

from __future__ import annotations

from dataclasses import asdict

from jaxpar.config.axes import BATCH_AXES, DATA_AXES, MESH_AXES, check_axes
from jaxpar.config.bounds import RANKS, spell_limit
from jaxpar.config.checks.sizes import divides, known
from jaxpar.config.counting import kv_heads, padded_vocab
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.reading.sections import rename_keys
from jaxpar.config.schema import Config, ParallelConfig
from jaxpar.config.schema.layout import fixed_for_planner
from jaxpar.pages.units import plural


def check_mesh_axes(config: Config) -> None:
    """Refuse sizes of mesh axes that are not positive, and more than one of -1."""
    check_axes(config.parallel)


def check_mesh(config: Config) -> None:
    """Refuse a mesh of more devices than any cluster has."""
    parallel = config.parallel
    devices = known(parallel, *MESH_AXES)
    if devices > RANKS:
        layout = " x ".join(f"{axis} {size}" for axis in MESH_AXES if (size := getattr(parallel, axis)) != 1)
        raise UserError(f"parallel: the mesh ({layout}) takes {devices} devices; expected at most {spell_limit(RANKS)}")


def check_auto(config: Config) -> None:
    """Refuse keys of the layout beside `parallel: auto`, which would not be used."""
    if config.parallel.auto:
        planned = ParallelConfig(**fixed_for_planner(config.parallel), auto=True)
        usual = rename_keys("parallel", asdict(planned))
        for key, asked in rename_keys("parallel", asdict(config.parallel)).items():
            if asked != usual[key]:
                raise UserError(
                    f"parallel.{key}: {asked} would not be used, because parallel: auto plans the layout; fix it with "
                    "python -m jaxpar.plan --fix, or leave out auto"
                )


def check_pipeline(config: Config) -> None:
    """Checks that do not depend on the schedule; `jaxpar.layout.choices.pipeline` has the others."""
    parallel, layers = config.parallel, config.model.layers
    if parallel.pipe == 1:
        defaults = ParallelConfig()
        for key in ("schedule", "virtual_stages", "stage_layers", "pipe_ends", "pipe_ticks"):
            value = getattr(parallel, key)
            if value not in (getattr(defaults, key), "one-stage"):
                shown = list(value) if isinstance(value, tuple) else value
                raise UserError(f"parallel.{key}: {shown} would not be used, because parallel.pipe is 1")
    if parallel.pipe_ends == "shared" and parallel.pipe_ticks == "branching":
        raise UserError(
            "parallel.pipe_ends: shared needs all pipeline ranks in each loss, and parallel.pipe_ticks: branching lets "
            "each rank do its own; expected last, or uniform ticks"
        )
    if parallel.stage_layers is not None:
        if min(parallel.stage_layers, default=0) < 1:
            raise UserError(f"parallel.stage_layers: every chunk needs a layer, got {list(parallel.stage_layers)}")
        if sum(parallel.stage_layers) != layers:
            raise UserError(
                f"parallel.stage_layers: {list(parallel.stage_layers)} makes "
                f"{plural(sum(parallel.stage_layers), 'layer')}, and model.layers is {layers}"
            )
    elif parallel.pipe * (parallel.virtual_stages or 1) > layers:
        raise UserError(
            f"parallel.pipe x virtual_stages: {parallel.pipe} x {parallel.virtual_stages or 1} chunks are more than "
            f"the {plural(layers, 'layer')} of the model (model.layers)"
        )


def check_heads(config: Config) -> None:
    """Refuse heads and feed-forward widths that the tensor ranks do not divide."""
    model, tensor = config.model, known(config.parallel, "tensor")
    divides("model.heads", model.heads, "parallel.tensor", tensor)
    if model.laurel_rank is not None:
        divides("model.laurel_rank", model.laurel_rank, "parallel.tensor", tensor)
    if (inputs := model.per_layer_embeddings) is not None:
        divides("model.per_layer_embeddings.width", inputs.width, "parallel.tensor", tensor)
    for kind, layer in kind_models(model).items():
        if kv_heads(layer) % tensor and tensor % kv_heads(layer):
            raise UserError(
                f"{key_of(kind, 'kv_heads')}: expected a multiple or a divisor of parallel.tensor ({tensor}), got "
                f"{kv_heads(layer)}"
            )
        for key in ("heads", "key_heads"):
            if layer.linear_attention is not None and (heads := getattr(layer.linear_attention, key)) is not None:
                divides(key_of(kind, f"linear_attention.{key}"), heads, "parallel.tensor", tensor)


def check_vocab(config: Config) -> None:
    """Refuse a padded vocabulary that the ranks which split it do not divide."""
    model, parallel = config.model, config.parallel
    shared = ("pipe", "tensor") if parallel.pipe_ends == "shared" else ("tensor",)
    ways = f"parallel.{' x '.join(shared)}", known(parallel, *shared)
    if model.vocab is None:
        divides("model.vocab_multiple", model.vocab_multiple, *ways)
    else:
        what = f"model.vocab (padded to a multiple of {model.vocab_multiple})"
        divides(what, padded_vocab(model), *ways, "; change model.vocab_multiple")


def check_sequence(config: Config) -> None:
    """Refuse a sequence length that context x tensor does not divide."""
    ranks = known(config.parallel, "context", "tensor")
    divides("data.sequence_length", config.data.sequence_length, "parallel.context x tensor", ranks)


def check_batch(config: Config) -> None:
    """Refuse a batch that data ranks x microbatches do not divide."""
    axes = DATA_AXES if config.parallel.islands == 1 else BATCH_AXES
    parts = known(config.parallel, *axes) * config.parallel.microbatches
    divides("data.batch_size", config.data.batch_size, f"parallel.{' x '.join(axes)} x microbatches", parts)
