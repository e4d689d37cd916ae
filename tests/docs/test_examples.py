"""The training commands of README can be given in the order in which they stand."""

import re
import shlex
from pathlib import Path

from jaxpar.config import Config, load_config, virtual_devices_needed
from jaxpar.layout.checks.validate import validate

ROOT = Path(__file__).parents[2]


def training_commands() -> list[tuple[str, Config]]:
    """The lines of README that start a run of a configuration, and what each is of."""
    found = []
    for line in re.findall(r"^    (.*)$", (ROOT / "README.md").read_text(), re.M):
        words = shlex.split(line, comments=True)
        if words[:2] == ["make", "train"]:
            arguments = shlex.split(words[2].removeprefix("ARGS=")) if len(words) > 2 else []
            arguments = ["--config", "configs/quickstart.yaml", *arguments]
        elif "jaxpar.train" in words and "--help" not in words:
            arguments = words[words.index("jaxpar.train") + 1 :]
        else:
            continue
        flags = list(zip(arguments[::2], arguments[1::2], strict=True))
        file = dict(flags)["--config"]
        found.append((line, load_config(ROOT / file, [value for flag, value in flags if flag == "--set"])))
    return found


def test_each_command_trains_in_a_folder_of_its_own():
    commands = training_commands()
    assert len(commands) >= 3
    names = [config.run.name for _, config in commands]
    assert len(set(names)) == len(names), "a later command would answer that the run has all its steps"


def test_each_layout_is_valid_and_has_the_devices_of_the_quickstart_or_fewer():
    for line, config in training_commands():
        validate(config)
        assert virtual_devices_needed(config.parallel) <= 8, line
