"""Checks that what a page names exists: paths, names in modules, commands and configuration keys.

`make site` checks links. Each check takes the text of a code span, or of a line of a code block, and a `Repository`. It
yields one sentence per mistake: the thing, and what is wrong with it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from jaxpar.__main__ import COMMANDS
from jaxpar.config.errors import UserError
from jaxpar.config.reading.overrides import parse_overrides
from jaxpar.config.reading.sections import SECTIONS, check_key
from jaxpar.config.spelling import did_you_mean
from tests.docs.pages import Page
from tests.docs.repository import PACKAGES, Repository

ROOTS = ("", "jaxpar/", "tests/", "docs/", "pallas_kernels/", "pallas_kernels/attention/")
"""Folders that a short path may be relative to."""
EXCEPTIONS = (
    "checkpoints/", "pieces/", "state/", "tensorboard/", ".prepare/",  # written by a run or by the preparation of data
    "build/", "dist/",  # what make writes
    "tokens/", "lib/",  # the user's data
    "run.yaml", "other.yaml",  # the user's configuration
    "utils.py",  # a name that CONTRIBUTING.md advises against
    "jaxpar/layers/feed_forward/gated_relu2.py",  # the example of docs/extending.md
)  # fmt: skip
"""Files, and folders with everything in them, that look like parts of the repository but are not."""
EXAMPLES = ("model.activation=gated_relu2", "optimizer.name=soap")
"""Overrides with a value that a page adds as an example."""
OTHER_PROGRAMS = ("--gpus-per-node", "--gpus-per-task", "--requeue", "--signal", "--hostfile")
"""Flags of other programs (Slurm, Open MPI) that pages name without the program."""

PLACEHOLDER = re.compile(r"(NAME|FILE|FOLDER|[A-Z])(\.\w+)?|.*(\.\.\.|[<>{}$…]).*")
"""A word to be replaced by the reader: `FILE`, `<name>`, `$HOME`."""
DOTTED = rf"(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+"
PYTHON = re.compile(r"(.*/)?python[\d.]*")
ENDS_COMMAND = re.compile(r"\|\|?|&&?|;|[12]?>>?|<|\)")


def problems(page: Page, repository: Repository) -> list[str]:
    """All mistakes of a page, each with its place."""
    found: list[str] = []
    for code in page.code:
        things = [*missing_paths(code.text, repository, code.before)]
        for check in (missing_names, missing_imports, missing_commands, missing_keys):
            things += check(code.text, repository)
        found += [f"{code.place}: {thing}" for thing in things]
    return list(dict.fromkeys(found))


def missing_paths(text: str, repository: Repository, before: Sequence[str] = ()) -> Iterator[str]:
    """Files and folders that do not exist, including short paths (`mesh/rules.py`) and globs (`jaxpar/*.py`).

    A short path is relative to one of `ROOTS` or to a folder named `before` it in the row of a table. A bare file name
    must exist below a folder named `before` it, or anywhere if there is no such folder.
    """
    for word in re.split(r"[\s'\"`,;=|]+", text):
        path, _, test = word.strip("()").rstrip(".:").removeprefix("./").partition("::")
        if not _is_path(path, repository) or path.startswith(EXCEPTIONS) or _is_placeholder(path):
            continue
        if not _exists(path, repository, before):
            yield f"{path}: there is no such {'folder' if path.endswith('/') else 'file'}{repository.near(path)}"
        elif test and test.split("[")[0] not in repository.tests:
            yield f"{word}: there is no test of that name{did_you_mean(test, repository.tests)}"


def _is_path(word: str, repository: Repository) -> bool:
    if not re.fullmatch(r"\.?[A-Za-z_][\w.*/\[\]<>{}$…-]*", word):
        return False
    first, slash, _ = word.partition("/")
    if slash and first in repository.top:
        return True
    return "*" not in word and "[" not in word and re.fullmatch(r".+(/|\.(py|md|sh|sbatch|ipynb))", word) is not None


def _is_placeholder(path: str) -> bool:
    return any(PLACEHOLDER.fullmatch(part) for part in path.split("/"))


def _exists(path: str, repository: Repository, before: Sequence[str]) -> bool:
    if "*" in path:
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
        return any(pattern.fullmatch(file) for file in repository.files)
    named = [root + place for place in before for root in ROOTS if repository.has(root + place) and "/" in place]
    folders = [place if place in repository.folders else f"{posixpath.dirname(place)}/" for place in named]
    if "/" in path:
        return any(repository.has(folder + path) for folder in (*ROOTS, *folders))
    if not folders:
        return path in repository.names
    return any(file.endswith(f"/{path}") and file.startswith(tuple(folders)) for file in repository.files)


def missing_names(text: str, repository: Repository) -> Iterator[str]:
    """Dotted names of modules, or of their definitions, that do not exist; names of tests that do not exist."""
    for match in re.finditer(
        rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?::([A-Za-z]\w*))?(?!/)", text
    ):
        if _is_file_name(match[1]):
            continue
        if why := _unresolved(".".join(part for part in match.groups() if part), repository):
            yield f"{match[0]}: {why}"
    if re.fullmatch(r"test_\w+", text) and text not in repository.tests:
        yield f"{text}: there is no test of that name{did_you_mean(text, repository.tests)}"


def missing_imports(text: str, repository: Repository) -> Iterator[str]:
    """Imports of names that their module does not define."""
    for match in re.finditer(rf"\bfrom ((?:{'|'.join(PACKAGES)})[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))", text):
        names = [name.split(" as ")[0].strip() for name in (match[2] or match[3]).split(",")]
        for name in filter(None, names):
            # `missing_names` reports a missing module.
            if not _unresolved(match[1], repository) and (why := _unresolved(f"{match[1]}.{name}", repository)):
                yield f"from {match[1]} import {name}: {why}"


def _unresolved(dotted: str, repository: Repository) -> str | None:
    path = dotted.replace(".", "/")
    if f"{path}.py" in EXCEPTIONS or f"{posixpath.dirname(path)}.py" in EXCEPTIONS or _is_placeholder(path):
        return None
    return repository.unresolved(dotted)


def _is_file_name(dotted: str) -> bool:
    return dotted.endswith((".py", ".md", ".csv", ".html", ".json", ".log", ".png", ".safetensors", ".txt", ".yaml"))


def missing_commands(text: str, repository: Repository) -> Iterator[str]:
    """Modules that cannot be run, flags that a command does not accept, and targets that the Makefile does not have."""
    for program, *arguments in _commands(text):
        if program == "make":
            targets = _until([word for word in arguments if "=" not in word], re.compile(r"[^a-z].*"))
            unknown = [target for target in targets if target not in repository.targets]
            yield from (f"make {name}: the Makefile has no such target" for name in unknown)
            continue
        file = program if program.endswith(".py") else repository.program(program)
        if file not in repository.files:
            # `missing_paths` and `missing_names` report a missing file or module.
            if file is None and not _unresolved(program, repository) and not _is_placeholder(program.replace(".", "/")):
                yield f"python -m {program}: there is no such module{did_you_mean(program, repository.modules())}"
            continue
        flags = repository.parser_flags(program, arguments)
        flags = {"--help", *(repository.flags_in(file) if flags is None else flags)}
        for flag in _flags(_until(arguments, re.compile("--"))):
            if flag not in flags:
                yield f"{program} {flag}: there is no such argument{did_you_mean(flag, flags)}"
    if text.startswith("--"):
        for flag in _flags(_words(text)):
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
        if command[:1] == ["make"]:
            yield command
        elif command and _flags(command) and re.fullmatch(DOTTED, command[0]):
            yield command  # `jaxpar.plan --config X`
        elif command and _flags(command) and command[0] in COMMANDS:
            yield [f"jaxpar.{command[0]}", *command[1:]]  # `train --plan`
        elif command[:1] == ["jaxpar"] and command[1:2] and command[1] in COMMANDS:
            yield [f"jaxpar.{command[1]}", *command[2:]]  # `jaxpar train --plan`
        for place, word in enumerate(command):
            behind = command[place + 1 :]
            if PYTHON.fullmatch(word) and len(behind) > 1 and behind[0] == "-m" and behind[1].split(".")[0] in PACKAGES:
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
        override = next(part for part in match.groups() if part is not None)
        if why := _refused(override.rstrip(",.:;")):
            yield f"--set {override}: {why}"
    key = re.fullmatch(rf"((?:{sections})\.\w+)(?:[=:] ?([\w-]*))?", text)
    if key and not _is_file_name(key[1]) and (why := _refused(f"{key[1]}={key[2] or ''}")):
        yield f"{text}: {why}"
    for match in re.finditer(r"--config[ =]([^\s'\"`)]+)", text):
        file = match[1].rstrip(",.:;")
        known = file in repository.files or file in EXCEPTIONS or _is_placeholder(file)
        if not known and not _is_path(file, repository):  # `missing_paths` reports a missing path
            yield f"--config {file}: there is no such file{repository.near(file)}"


def _refused(override: str) -> str | None:
    name, equals, value = override.partition("=")
    section, dot, key = name.partition(".")
    if (section, key) in (("section", "key"), ("SECTION", "KEY")) or _is_placeholder(name):
        return None
    if override in EXAMPLES:
        return None
    try:
        if not equals or not dot or not value or (value[0] not in "{[" and _is_placeholder(value)):
            check_key(section, key)
        else:
            parse_overrides([override])
    except UserError as error:
        return str(error)
    return None
