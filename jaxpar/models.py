"""`python -m jaxpar.models [MODEL]`: the families of models that are known, or the configuration to begin with."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxpar.cli import Parser, command, without_gpus
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.schema import ModelConfig


@command()
def main(arguments: Sequence[str]) -> None:
    """Describe models from the command line; the exit code: 0 done, 2 a user error."""
    parser = Parser(
        "jaxpar.models",
        "List the families of models that can be read and written in Hugging Face's format; or print the configuration "
        "with which to train a model, or the key of its config.json that is not supported (docs/weights.md).",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder in Hugging Face's format, or of a run")
    options = parser.parse_args(arguments)
    print(_families() if options.model is None else _begin(options.model), end="")


def _families() -> str:
    """A line for each family."""
    from jaxpar.interop.families.registry import FAMILIES

    width = max(len(family.model_type) for family in FAMILIES.values())
    return "".join(f"{family.model_type:{width}}  {family.presets}\n" for family in FAMILIES.values())


def _begin(path: str) -> str:
    """The sections of a configuration that begins with the weights of a model."""
    from jaxpar.config import DataConfig
    from jaxpar.config.reading.yaml_text import to_yaml
    from jaxpar.interop.config_json import model_of
    from jaxpar.interop.mapping.multimodal import is_multimodal
    from jaxpar.interop.sources.hf_folder import CONFIG, HFFolder, read_config, read_full_config
    from jaxpar.interop.sources.open_source import local_model, open_source
    from jaxpar.interop.sources.tensor_files import has_tensors
    from jaxpar.layers.counting import parameter_count

    without_gpus()
    folder, about = local_model(path, "MODEL"), ""
    if folder.is_dir() and (folder / CONFIG).exists():
        hf_config = read_config(folder)
        family, model = model_of(hf_config)
        about = f"{family.name} in Hugging Face's format"
        if type(length := hf_config.get("max_position_embeddings")) is int:
            about += f", made for up to {length} tokens"
        if (model.tied or is_multimodal(read_full_config(folder))) and has_tensors(folder):
            source = HFFolder(folder)  # not tied if its files have another head
            model, about = source.model, "; ".join([about, *source.remarks])
    else:
        source = open_source(path, "MODEL")
        model, about = source.model, source.description
    sections: dict[str, object] = {"run": {"init_from": path}, "model": _written(model)}
    if not model.causal:
        sections["loss"] = {"name": next(name for name, entry in OBJECTIVES.items() if entry.masked)}
    if model.position == "learned" and model.max_positions < DataConfig().sequence_length:
        sections["data"] = {"sequence_length": model.max_positions}
    return f"# {path}: {about}; {parameter_count(model, padded=False):,} weights\n{to_yaml(sections)}"


def _written(model: ModelConfig) -> dict[str, object]:
    """The keys of a model section that are not their defaults, and its sizes."""
    from dataclasses import asdict

    from jaxpar.config.schema import ModelConfig

    plain, usual = asdict(model), asdict(ModelConfig())
    sizes = ("layers", "embed", "heads", "mlp", "vocab")
    plain["rope"] = {key: value for key, value in plain["rope"].items() if value != usual["rope"][key]}
    return {key: value for key, value in plain.items() if key in sizes or value not in (usual[key], {})}


if __name__ == "__main__":
    sys.exit(main())
