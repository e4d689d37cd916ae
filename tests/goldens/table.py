"""The page of families, made of their tables and goldens: `python -m tests.goldens.table > docs/families.md`."""

import json

from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.multimodal import MULTIMODAL, TEXT
from tests.goldens.loading import FOLDER, NAMES, WITH_PEFT

BEGINNING = """# Families

For anyone who wants to know whether a model can be read, trained and written. This prints the configuration for a
folder, or the key of its `config.json` that is not supported:

    python -m jaxpar.models FOLDER

The table is made from the families and their tests (`python -m tests.goldens.table`).

| `model_type` | published models | class in transformers | tiny models that are compared | adapters | with images |
|---|---|---|---|---|---|
"""
ENDING = """
- *Tiny models that are compared*: random models that `transformers` made (`tests/goldens/`). Logits
  differ from its float64 logits by at most 1e-5 of the largest, on one device and split over fsdp, context and tensor;
  an export equals the folder that was read, byte for byte. Models that generate are also compared at lengths 1 and 17,
  and their greedy tokens with the likeliest of the training forward, on five layouts. `bert` and `modernbert`, which do
  not, are compared by their masked loss. `transformers` has no SpikingBrain: the reference is written here.
- *Adapters*: LoRA factors exported in PEFT's format give the logits that PEFT computes.
- *With images*: multimodal models with this text model; only the text model is read.
- `make goldens-check TRANSFORMERS=PYTHON`: the same with configurations drawn at random around each tiny model, at
  lengths 1, 17 and 200, every second one sharded, in float32 and bfloat16; `transformers` loads the exports again.
"""


def page() -> str:
    """The text of the page."""
    goldens: dict[str, list[str]] = {}
    for name in NAMES:
        goldens.setdefault(_config(name)["model_type"], []).append(name)
    images: dict[str, list[str]] = {}
    for name in MULTIMODAL:
        if (FOLDER / "multimodal" / name).exists():
            images.setdefault(_config(f"multimodal/{name}")[TEXT]["model_type"], []).append(f"`{name}`")
    rows = []
    for family in FAMILIES.values():
        names = goldens[family.model_type]
        adapters = "yes" if set(names) & set(WITH_PEFT) else ""
        cells = [
            f"`{family.model_type}`", family.presets, f"`{family.architecture}`", ", ".join(names), adapters,
            ", ".join(images.get(family.model_type, [])),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |\n")
    return BEGINNING + "".join(rows) + ENDING


def _config(name: str) -> dict:
    return json.loads((FOLDER / name / "config.json").read_text())


if __name__ == "__main__":
    print(page(), end="")
