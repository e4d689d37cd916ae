"""Notes which keys the configuration classes of transformers write, with their defaults.

    python -m tests.goldens.generate_keys

writes `tests/goldens/config_keys.json`, by the `model_type` of each golden: null where transformers has no such class.
Keys of every class are under "every". A default that is a list or a mapping is written as an empty one.
"""

import dataclasses
import json
from pathlib import Path

from transformers import CONFIG_MAPPING, PreTrainedConfig

FOLDER = Path(__file__).parent
FILE = FOLDER / "config_keys.json"


def keys_of(kind: type[PreTrainedConfig]) -> dict[str, object]:
    """The keys that a class writes, with their defaults before anything follows from others."""
    declared = {one.name: one.default for one in dataclasses.fields(kind) if one.default is not dataclasses.MISSING}
    written = {key: value for key, value in kind().to_dict().items() if key != "transformers_version"}
    return {key: _small(declared.get(key, value)) for key, value in sorted(written.items())}


def _small(value: object) -> object:
    """A default as JSON has it."""
    if isinstance(value, dict):
        return {}
    if isinstance(value, list | tuple | set):
        return []
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def main() -> None:
    """Write the file."""
    goldens = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*/config.json"))]
    every = keys_of(PreTrainedConfig)
    table: dict[str, dict[str, object] | None] = {"every": every}
    for model_type in sorted({golden["model_type"] for golden in goldens}):
        table[model_type] = None
        if model_type in CONFIG_MAPPING:
            keys = keys_of(CONFIG_MAPPING[model_type])
            table[model_type] = {key: value for key, value in keys.items() if every.get(key, ...) != value}
    FILE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
