"""Adapters in PEFT's format, to change and to break.

    python -m tests.interop.peft_adapters FOLDER [NAME ...]

exports the factors of `test_adapter` in that format.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from jaxpar.convert import main
from jaxpar.interop.adapters.adapter import Adapter
from tests.goldens.loading import FOLDER, WITH_PEFT
from tests.interop.test_adapter import LORA, TARGETS, save_factors


def products(adapter: Adapter) -> dict[tuple[str, int], np.ndarray]:
    return {key: a @ b if a.ndim == b.ndim == 3 else np.tensordot(a, b, 1) for key, (a, b) in adapter.factors.items()}


def assert_products(one: Adapter, other: Adapter) -> None:
    left, right = products(one), products(other)
    assert left.keys() == right.keys()
    for key, product in left.items():
        np.testing.assert_allclose(product, right[key], atol=1e-5)


def changed(exported: Path, to: Path, **keys: Any) -> Path:
    """The adapter with other keys in its configuration."""
    to.mkdir()
    config = json.loads((exported / "peft/adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps(config | keys))
    (to / "adapter_model.safetensors").symlink_to(exported / "peft/adapter_model.safetensors")
    return to


def with_tensors(
    exported: Path, to: Path, change: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]], **keys: Any
) -> Path:
    """The adapter with other tensors."""
    changed(exported, to, **keys)
    file = to / "adapter_model.safetensors"
    values = change(load_file(file))
    file.unlink()
    save_file(dict(values), file)
    return to


if __name__ == "__main__":
    for name in sys.argv[2:] or WITH_PEFT:
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        save_factors(FOLDER / name, folder / "run", replace(LORA, targets=TARGETS.get(name)))
        assert main(["jaxpar-to-hf", str(folder / "run"), str(folder / "adapter"), "--adapter"]) == 0
