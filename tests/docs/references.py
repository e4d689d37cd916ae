"""Checks that what a page names exists: paths, names in modules, commands and configuration keys.

`make site` checks links. Each check takes the text of a code span, or of a line of a code block, and a `Repository`,
and yields what is wrong. Sources are read, never imported.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxpar.__main__ import COMMANDS
from jaxpar.config.errors import UserError
from jaxpar.config.reading.overrides import parse_overrides
from jaxpar.config.reading.sections import SECTIONS, check_key
from jaxpar.config.spelling import did_you_mean
from tests.docs.pages import Page

PACKAGES = "jaxpar|pallas_kernels|benchmarks|tests"
EXCEPTIONS = (
    "runs/", "checkpoints/", "pieces/", "state/", "tensorboard/", ".prepare/",  # written by a run
    "build/", "dist/",  # what make writes
    "tokens/", "lib/",  # the user's data
    "run.yaml", "other.yaml",  # the user's configuration
    "utils.py",  # a name that CONTRIBUTING.md advises against
    "jaxpar/layers/feed_forward/gated_relu2", "jaxpar.layers.feed_forward.gated_relu2",  # docs/extending.md's example
)  # fmt: skip
"""Files, and folders with everything in them, that look like parts of the repository but are not."""
EXAMPLES = ("model.activation=gated_relu2", "optimizer.name=soap")
"""Overrides with a value that a page adds as an example."""
OTHER_PROGRAMS = ("--gpus-per-node", "--gpus-per-task", "--requeue", "--signal", "--hostfile")
"""Flags of other programs (Slurm, Open MPI) that pages name without the program."""
FILE_NAME = re.compile(r".*\.(py|md|csv|html|json|log|png|safetensors|txt|yaml)")
PLACEHOLDER = re.compile(r"(NAME|FILE|FOLDER|COMMAND|[A-Z])(\.\w+)?|.*(\.\.\.|[<>{}$…]).*")
"""A word to be replaced by the reader: `FILE`, `<name>`, `$HOME`."""
PYTHON = re.compile(r"(.*/)?python[\d.]*")
ENDS_COMMAND = re.compile(r"\|\|?|&&?|;|[12]?>>?|<|\)")


@dataclass(frozen=True)
class Repository:
    """Paths of files and a function that reads them; it need not be on disk."""

    files: frozenset[str]
    read: Callable[[str], str]
    """The text of a file."""
    parser_flags: Callable[[str, Sequence[str]], Iterable[str] | None] = lambda module, words: None
    """Flags that a module accepts, given its arguments; None if they are to be found in its source."""

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every end of the path of a file or folder, a folder's with and without its slash."""
        ends = set()
        for file in self.files:
            parts = file.split("/")
            for start in range(len(parts)):
                ends.add("/".join(parts[start:]))
                for end in range(start + 1, len(parts)):
                    ends |= {(folder := "/".join(parts[start:end])), f"{folder}/"}
        return frozenset(ends)

    @cached_property
    def tests(self) -> frozenset[str]:
        """Names of all test functions."""
        files = [path for path in self.files if re.fullmatch(r"tests/(.*/)?test_\w+\.py", path)]
        return frozenset(name for path in files for name in re.findall(r"^def (test_\w+)", self.read(path), re.M))

    @cached_property
    def flags(self) -> frozenset[str]:
        """Flags of all commands, and of the tests."""
        folders = re.compile(r"(jaxpar|launch|benchmarks(/\w+)?|tests)/\w+\.py")
        return frozenset(flag for path in self.files if folders.fullmatch(path) for flag in self.flags_in(path))

    def has(self, path: str) -> bool:
        """Whether a file or folder exists at exactly this path."""
        return path in self.files or any(file.startswith(f"{path.rstrip('/')}/") for file in self.files)

    def flags_in(self, path: str) -> frozenset[str]:
        """Flags of the command in a file: its own, and those that `jaxpar/cli/parser.py` and imported `add_...` add."""
        text = self.read(path)
        if not re.search(r"argparse|addoption|\bParser\(", text):
            return frozenset()
        others = ["jaxpar/cli/parser.py"] * ("jaxpar.cli" in text and path != "jaxpar/cli/parser.py")
        others += [
            f"{module.replace('.', '/')}.py"
            for module in re.findall(r"^from (bench[\w.]*) import .*\badd_", text, re.M)
        ]
        own = frozenset(re.findall(r"""(?<=["'])--[a-z][\w-]*(?=["'])""", text))
        return own.union(*(self.flags_in(other) for other in others if other in self.files))

    def module(self, dotted: str) -> str | None:
        """The file of a module or package."""
        path = dotted.replace(".", "/")
        return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in self.files), None)

    def unresolved(self, dotted: str) -> str | None:
        """Why a dotted name is neither a module nor defined in one; None if it is."""
        if self.has(f"{dotted.replace('.', '/')}/") or self.module(dotted) or dotted.startswith(EXCEPTIONS):
            return None
        parts = dotted.split(".")
        if any(PLACEHOLDER.fullmatch(part) for part in parts):
            return None
        length = next((n for n in range(len(parts), 0, -1) if self.module(".".join(parts[:n]))), 0)
        if not length:
            return f"there is no module {dotted}"
        module, (name, *attributes) = ".".join(parts[:length]), parts[length:]
        text = self.read(self.module(module) or "")
        if source := re.search(rf"^\s*from ((?:{PACKAGES})[\w.]*) import [^#\n]*\b(\w+) as {name}\b", text, re.M):
            return self.unresolved(".".join([source[1], source[2], *attributes]))
        if source := re.search(rf"^\s*from ((?:{PACKAGES})[\w.]*) import (?:\([^)]*|[^\n(]*)\b{name}\b", text, re.M):
            return self.unresolved(".".join([source[1], name, *attributes]))
        statement = rf"^(?:(?:async )?def|class|type|import|from .* import) .*\b{name}\b|^(?:\w+, )*{name}\b.*[:=]"
        if not re.search(rf"{statement}|[\"']{name}[\"']", text, re.M):
            return f"{module} has no {name}"
        inside = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", text, re.M | re.S)
        if attributes and inside and not re.search(rf"^class {name}\(", text, re.M):
            own = rf"\bdef {attributes[0]}\b|\b{attributes[0]}(?:, \w+)* *[:=]"
            return None if re.search(own, inside[0]) else f"{module}.{name} has no {attributes[0]}"
        return None


def problems(page: Page, repository: Repository) -> list[str]:
    """All mistakes of a page, each with its place."""
    found: list[str] = []
    for place, text in page.code:
        for check in (missing_paths, missing_names, missing_commands, missing_keys):
            found += [f"{place}: {thing}" for thing in check(text, repository)]
    return list(dict.fromkeys(found))


def missing_paths(text: str, repository: Repository) -> Iterator[str]:
    """Files and folders that do not exist, including short paths (`mesh/rules.py`) and globs (`jaxpar/*.py`)."""
    for word in re.split(r"[\s'\"`,;=|]+", text):
        path, _, test = word.strip("()").rstrip(".:").removeprefix("./").partition("::")
        placeholder = any(PLACEHOLDER.fullmatch(part) for part in path.split("/"))
        if not _is_path(path, repository) or path.startswith(EXCEPTIONS) or placeholder:
            continue
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
        if not (path in repository.paths or ("*" in path and any(map(pattern.fullmatch, repository.files)))):
            yield f"{path}: there is no such {'folder' if path.endswith('/') else 'file'}"
        elif test and test.split("[")[0] not in repository.tests:
            yield f"{word}: there is no test of that name{did_you_mean(test, repository.tests)}"


def _is_path(word: str, repository: Repository) -> bool:
    if not re.fullmatch(r"\.?[A-Za-z_][\w.*/\[\]<>{}$…-]*", word):
        return False
    first, slash, _ = word.partition("/")
    if slash and any(file.startswith(f"{first}/") for file in repository.files):
        return True
    return "*" not in word and "[" not in word and re.fullmatch(r".+(/|\.(py|md|sh|sbatch|ipynb))", word) is not None


def missing_names(text: str, repository: Repository) -> Iterator[str]:
    """Dotted names of modules or of their definitions, imports, and names of tests, that do not exist."""
    for match in re.finditer(rf"(?<![\w./-])((?:{PACKAGES})(?:\.[A-Za-z_]\w*)+)(?::([A-Za-z]\w*))?(?!/)", text):
        name = ".".join(filter(None, match.groups()))
        if not FILE_NAME.fullmatch(match[1]) and (why := repository.unresolved(name)):
            yield f"{match[0]}: {why}"
    for match in re.finditer(rf"\bfrom ((?:{PACKAGES})[\w.]*) import ([\w, ]+)", text):
        names = [name.split(" as ")[0].strip() for name in match[2].split(",")]
        for name in names if not repository.unresolved(match[1]) else ():
            if name and (why := repository.unresolved(f"{match[1]}.{name}")):
                yield f"from {match[1]} import {name}: {why}"
    if re.fullmatch(r"test_\w+", text) and text not in repository.tests:
        yield f"{text}: there is no test of that name{did_you_mean(text, repository.tests)}"


def missing_commands(text: str, repository: Repository) -> Iterator[str]:
    """Modules that cannot be run, flags that a command does not accept, and targets that the Makefile does not have."""
    for program, *arguments in _commands(text):
        if program == "make":
            rules = re.findall(r"^([\w-][\w -]*):(?!=)", repository.read("Makefile"), re.M)
            known = {name for rule in rules for name in rule.split()}
            targets = _until([word for word in arguments if "=" not in word], re.compile(r"[^a-z].*"))
            yield from (f"make {name}: the Makefile has no such target" for name in targets if name not in known)
            continue
        path = program.replace(".", "/")
        files = (program,) if program.endswith(".py") else (f"{path}.py", f"{path}/__main__.py")
        file = next((file for file in files if file in repository.files), None)
        if file is None:
            placeholder = any(map(PLACEHOLDER.fullmatch, program.split(".")))
            if not (program.endswith(".py") or placeholder or repository.unresolved(program)):
                yield f"python -m {program}: there is no such module"
            continue
        flags = repository.parser_flags(program, arguments)
        flags = {"--help", *(repository.flags_in(file) if flags is None else flags)}
        for flag in _flags(_until(arguments, re.compile("--"))):
            if flag not in flags:
                yield f"{program} {flag}: there is no such argument{did_you_mean(flag, flags)}"
    for flag in _flags(_words(text)) if text.startswith("--") else ():
        if flag not in (*repository.flags, *OTHER_PROGRAMS, "--help"):
            yield f"{flag}: no command has such an argument{did_you_mean(flag, repository.flags)}"


def _commands(text: str) -> Iterator[list[str]]:
    """Each command of a shell line: its module, its script or `make`, followed by its arguments."""
    words = _words(text.strip().removeprefix("$ "))
    while words:
        command = _until(words, ENDS_COMMAND)
        words = words[len(command) + 1 :]
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        if command[:1] == ["jaxpar"] and command[1:2] and command[1] in COMMANDS:
            command = command[1:]
            yield [f"jaxpar.{command[0]}", *command[1:]]  # `jaxpar train --plan`
        elif command[:1] == ["make"]:
            yield command
        elif command and _flags(command) and re.fullmatch(rf"(?:{PACKAGES})(?:\.[A-Za-z_]\w*)+", command[0]):
            yield command  # `jaxpar.plan --config X`
        elif command and _flags(command) and command[0] in COMMANDS:
            yield [f"jaxpar.{command[0]}", *command[1:]]  # `train --plan`
        for place, word in enumerate(command):
            behind = command[place + 1 :]
            if PYTHON.fullmatch(word) and behind[:1] == ["-m"] and re.match(rf"({PACKAGES})\b", "".join(behind[1:2])):
                yield _until(behind[1:], PYTHON)
            elif re.fullmatch(r"launch/\w+\.py", word):
                yield [word, *_until(behind, PYTHON)]


def _flags(words: Iterable[str]) -> list[str]:
    return [flag[0] for word in words if (flag := re.match(r"--[a-z][a-z\d-]*(?!\w)", word))]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an apostrophe in the output of a command
        return text.split()


def _until(words: Sequence[str], end: re.Pattern[str]) -> list[str]:
    place = next((place for place, word in enumerate(words) if end.fullmatch(word)), len(words))
    return list(words[:place])


def missing_keys(text: str, repository: Repository) -> Iterator[str]:
    """Configuration keys that do not exist or do not accept the value, and `--config` files that do not exist."""
    sections = "|".join(SECTIONS)
    option = r"""--set[ =](?:'([^']*)'|"([^"]*)"|([^\s'"`)]+))"""
    string = rf"""["']((?:{sections})\.\w+=[^"']*)["']"""
    for match in re.finditer(f"{option}|{string}", text):
        override = next(part for part in match.groups() if part is not None).rstrip(",.:;")
        key, _, values = override.partition("=")
        several = [f"{key}={value}" for value in values.split(",")] if "jaxpar.sweep" in text else [override]
        for why in filter(None, map(_refused, several)):
            yield f"--set {override}: {why}"
    key = re.fullmatch(rf"((?:{sections})\.\w+)(?:[=:] ?([\w-]*))?", text)
    if key and not FILE_NAME.fullmatch(key[1]) and (why := _refused(f"{key[1]}={key[2] or ''}")):
        yield f"{text}: {why}"
    for match in re.finditer(r"--config[ =]([^\s'\"`)]+)", text):
        file = match[1].rstrip(",.:;")
        if not (
            file in repository.files or file in EXCEPTIONS or PLACEHOLDER.fullmatch(file) or _is_path(file, repository)
        ):
            yield f"--config {file}: there is no such file"


def _refused(override: str) -> str | None:
    name, equals, value = override.partition("=")
    section, dot, key = name.partition(".")
    if name in ("section.key", "SECTION.KEY") or PLACEHOLDER.fullmatch(name) or override in EXAMPLES:
        return None
    try:
        if not equals or not dot or not value or (value[0] not in "{[" and PLACEHOLDER.fullmatch(value)):
            check_key(section, key)
        else:
            parse_overrides([override])
    except UserError as error:
        return str(error)
    return None
