"""Exports the factors of `test_adapter` in PEFT's format: `python -m tests.interop.peft_adapters FOLDER [NAME ...]`."""

import sys
from dataclasses import replace
from pathlib import Path

from jaxpar.convert import main
from tests.goldens.loading import FOLDER, WITH_PEFT
from tests.interop.test_adapter import LORA, TARGETS, save_factors

if __name__ == "__main__":
    for name in sys.argv[2:] or WITH_PEFT:
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        save_factors(FOLDER / name, folder / "run", replace(LORA, targets=TARGETS.get(name)))
        assert main(["jaxpar-to-hf", str(folder / "run"), str(folder / "adapter"), "--adapter"]) == 0
