"""The table of a family of models, and the tensors that it gives for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice

from jaxpar.config.counting import rotary_dim
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_model, layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.form import Form, Laid, LaidInRows
from jaxpar.interop.mapping.heads_form import LaidByHead
from jaxpar.interop.mapping.keys import Entry, LayerEntry
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.layers.linear_attention.mixer import sizes_of
from jaxpar.mesh.parameters import ParamSpec

LAYER, BEFORE, EXPERT = "{layer}", "{before}", "{expert}"


@dataclass(frozen=True)
class Tensor:
    """A line of a table: a tensor of Hugging Face's, and the weights that it holds.

    A line applies if the model has its weights: lines about experts to layers with experts, others to layers without.
    """

    name: str
    """Hugging Face's name, with `{layer}` for the number of the layer, and `{expert}` for that of the expert;
    `{before}` for the number of the layer before, and `{last}` for that of the last layer."""
    weights: str
    """Our name, as `layers.mlp.up`; several, with blanks between, stand one after the other in the tensor."""
    form: Form = Form.LINEAR
    all_experts: bool = False
    """Whether the tensor has the matrices, or biases, of all experts, with the expert as its first dim."""
    interleaved: bool = False
    """The outputs of its weights take turns."""
    by_head: bool = False
    """Whether its weights are concatenated within each head."""
    by_key_head: bool = False
    """Whether they are within each head of keys of a mixer with a state, whose heads of values stand in it together."""
    rotary: bool = False
    """Rotating pairs are neighbours in it, where ours are the two halves."""

    also: str = ""
    """Another name in files that are read, where others write them."""
    constants: tuple[tuple[str, float], ...] = ()
    """Names of tensors beside it that hold a number which is the same in all models."""
    first: str = ""
    """Its name in the first layer, where that has another."""
    also_first: str = ""
    """The name beside `first` in files that are read, as `also` is beside `name`."""

    @property
    def holds_experts(self) -> bool:
        """Whether its weights are those of experts."""
        return self.all_experts or EXPERT in self.name


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a model."""

    name: str
    weights: tuple[str, ...]
    """Names of our weights."""
    layer: int | None
    laid: Laid
    member: int | None = None
    """The expert whose matrix it is; None if it is not one of several."""
    also: str = ""
    """Another name that it may have."""
    constants: tuple[tuple[str, float], ...] = ()
    """Names and values of tensors of one number that are written beside it."""


@dataclass(frozen=True)
class Family:
    """Models whose tensors and keys have the same names."""

    name: str
    model_type: str
    """The value of `model_type` in `config.json`."""
    architecture: str
    """The class of transformers, in `architectures`."""
    presets: str
    """Published models of the family, for people."""
    tensors: tuple[Tensor, ...]
    """Tensors in the order of transformers."""
    model: Mapping[str, object]
    """Keys of our model section that all models of the family share."""
    entries: tuple[Entry, ...]
    """The keys of `config.json` about the whole model."""
    layer_entries: tuple[LayerEntry, ...]
    """Keys whose value may differ from layer to layer."""
    unused: tuple[str, ...] = ()
    """Keys of its own that do not change what the model computes."""
    quantizations: tuple[str, ...] = ()
    """Values of `quant_method` in `quantization_config` whose tensors are read as bfloat16."""
    prefix: str = "model."
    """The beginning of the names of all tensors but the head; some old files lack it."""
    head: str = "lm_head.weight"
    """The head's tensor, which files of a tied model may repeat; it is not read there."""
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    """Ends of names of tensors in old files that are no weights; they are not read."""
    omitted: tuple[str, ...] = ()
    """Beginnings of names of tensors that transformers leaves out, as those that predict further tokens; they are not
    read, which is reported."""
    further_layers: str | None = None
    """The key for the number of layers behind those of the model, which predict further tokens; they are not read."""


def tensors_of(family: Family, model: ModelConfig, most: int | None = None) -> list[StoredTensor]:
    """The tensors of a model, layer by layer in the order of the family's table.

    Args:
        family: of the model.
        model: which may have any number of layers and experts.
        most: return only the first `most` tensors; None for all of them.

    Raises:
        UserError: the model has a weight, or an input, for which the family has no tensor.
    """
    if model.input != "tokens":
        raise UserError(f"model.input: {model.input} has no tensors in the format of {family.name}; expected tokens")
    tensors = list(islice(_tensors(family, model), most))
    if len(tensors) == most:
        return tensors
    covered = {(weight, tensor.layer) for tensor in tensors for weight in tensor.weights}
    kinds = layer_kinds(model)
    for kind in dict.fromkeys(kinds):
        for name in weight_specs(model, kind):
            layer = kinds.index(kind) if name.startswith(LAYER_PREFIX) else None
            if (name, layer) not in covered:
                raise UserError(f"model: {family.name} has no tensor for the weight {name}, which this model has")
    return tensors


def _tensors(family: Family, model: ModelConfig) -> Iterator[StoredTensor]:
    kinds = layer_kinds(model)
    specs = {kind: weight_specs(model, kind) for kind in dict.fromkeys(kinds)}
    models = {kind: kind_model(model, kind) for kind in specs}
    for in_layers, lines in groupby(family.tensors, key=lambda line: LAYER in line.name or BEFORE in line.name):
        table = list(lines)
        for layer in range(model.layers) if in_layers else (None,):
            specs_of_kind = specs[kinds[layer or 0]]
            for line in table:
                weights = tuple(line.weights.split())
                if not all(weight in specs_of_kind for weight in weights):
                    continue
                if bool(specs_of_kind[weights[0]].routed) == line.holds_experts:
                    specs_here = tuple(specs_of_kind[weight] for weight in weights)
                    yield from _line_tensors(
                        line, weights, layer, model.layers, _laid(line, specs_here, models[kinds[layer or 0]])
                    )


def _laid(line: Tensor, specs: tuple[ParamSpec, ...], model: ModelConfig) -> Laid:
    """The layout of a line's weights in its tensor, for a model whose layers are all alike."""
    if line.by_key_head:
        return LaidByHead(line.form, specs, groups=sizes_of(model).key_heads)
    form = line.form
    if form is Form.ROWS:
        form, specs = Form.TABLE, tuple(replace(spec, inputs=1) for spec in specs)
    if line.by_head or line.rotary:
        # The part of a head that rotates is the last one of latent attention, the first of others.
        first = model.latent_attention is None
        return LaidByHead(form, specs, rotary=rotary_dim(model) if line.rotary else 0, first=first)
    return (LaidInRows if line.form in (Form.TAPS, Form.HEADS, Form.ROW) else Laid)(form, specs, line.interleaved)


def _line_tensors(
    line: Tensor, weights: tuple[str, ...], layer: int | None, layers: int, laid: Laid
) -> Iterator[StoredTensor]:
    """The tensor of a line in a layer, or one for each expert."""
    if EXPERT not in line.name:
        at = {"last": layers - 1} | ({} if layer is None else {"layer": layer, "before": layer - 1})
        name, also = (text.format(**at) for text in (line.name, line.also))
        name, also = (line.first, line.also_first) if layer == 0 and line.first else (name, also)
        constants = tuple((one.format(**at), value) for one, value in line.constants)
        yield StoredTensor(name, weights, layer, laid, also=also, constants=constants)
        return
    one = replace(laid, specs=tuple(replace(s, shape=s.shape[1:], axes=s.axes[1:]) for s in laid.specs))
    for expert in range(laid.specs[0].shape[0]):
        name = line.name.format(layer=layer, expert=expert)
        yield StoredTensor(name, weights, layer, one, expert)
