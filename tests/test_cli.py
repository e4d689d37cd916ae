"""All commands share these: mistakes in one sentence, types of arguments, and how a command ends."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxpar.__main__ import COMMANDS
from jaxpar.cli import Parser, command, positive, seconds, size, stop
from jaxpar.config.errors import UserError
from tests.sentences import refused, refused_by_command


def parser() -> Parser:
    made = Parser("jaxpar.example", "An example.", words=("explain",))
    made.add_config(required=True)
    made.add_json()
    add = made.add_argument
    add("--format", "--kind", choices=("text", "lines"))
    add("--steps", type=int)
    add("--share", type=float)
    add("--count", type=positive)
    add("--timeout", type=seconds)
    add("--budget", type=size)
    add("--words")
    return made


def test_a_wrong_choice_of_an_argument_without_a_flag_is_one_sentence():
    made = Parser("jaxpar.example", "An example.")
    made.add_argument("direction", choices=("there", "back"))
    with refused("direction", "there or back", "'bakc'", "back?"):
        made.parse_args(["bakc"])


def test_config_and_settings_are_the_same_everywhere():
    options = parser().parse_args(["--config", "a.yaml", "--set", "a.b=1", "--set", "c.d=2"])
    assert (options.config, options.overrides, options.json) == (Path("a.yaml"), ["a.b=1", "c.d=2"], False)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--confg a.yaml", ("--confg", "did you mean --config?")),  # and not that --config is missing
        ("--confg=a.yaml", ("--confg", "did you mean --config?")),
        ("--conf a.yaml", ("--conf", "did you mean --config?")),  # no abbreviations: a new flag could change them
        ("--config a.yaml explian", ("explian", "did you mean explain?")),
        ("--config a.yaml -x", ("there is no argument -x",)),
        ("--config a.yaml b.csv", ("there is no argument b.csv", "an option before it", "--config FILE")),
        ("--json", ("--config", "required")),
        ("--config", ("--config", "expected one argument")),
        ("@ --format texts", ("--format/--kind", "expected text or lines", "'texts'", "did you mean text?")),
        ("@ --steps 1.5", ("--steps", "a whole number", "'1.5'")),
        ("@ --share half", ("--share", "a number", "'half'")),
        ("@ --count 0", ("--count", "a whole number from 1 up", "'0'")),
        ("@ --count 9999999999", ("--count", "'9999999999'")),
        ("@ --timeout nan", ("--timeout", "seconds above 0", "'nan'")),
        ("@ --timeout 1e9", ("--timeout", "at most 1000000", "'1e9'")),
        ("@ --budget 6GB", ("--budget", "6GiB", "'6GB'")),
    ],
)
def test_a_mistake_names_the_flag_the_value_and_what_was_expected(arguments: str, parts: Sequence[str]):
    with refused(*parts):
        parser().parse_args(arguments.replace("@", "--config a.yaml").split())


def test_values_are_no_flags():
    options = parser().parse_args(["--config", "a.yaml", "--words", "--two words", "--budget", "1.5g"])
    assert (options.words, options.budget) == ("--two words", 3 * 2**29)


def ends(error: Exception | KeyboardInterrupt | None = None, code: int | None = None) -> int:
    """Exit code of a command that does so."""

    @command("interrupted; go on")
    def main(arguments: Sequence[str]) -> int | None:
        if error is not None:
            raise error
        return code

    with warnings.catch_warnings():
        return main([])


def test_a_command_ends_with_its_own_code_that_of_a_mistake_or_of_an_interrupt(capfd: pytest.CaptureFixture[str]):
    assert (ends(), ends(code=1)) == (0, 1)
    refused_by_command(ends(UserError("--x: expected y")), *capfd.readouterr(), "--x: expected y")
    assert ends(KeyboardInterrupt()) == 130
    assert capfd.readouterr().err == "jaxpar: interrupted; go on\n"
    with pytest.raises(BrokenPipeError):  # of anything but the reader of the output
        ends(BrokenPipeError())
    assert stop(1, "no more") == 1
    assert capfd.readouterr() == ("", "jaxpar: no more\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_suggests_the_nearest_flag(name: str, capfd: pytest.CaptureFixture[str]):
    main: Any = __import__(f"jaxpar.{name}", fromlist=["main"]).main
    refused_by_command(main(["--helq"]), *capfd.readouterr(), "--helq", "did you mean --help?")
