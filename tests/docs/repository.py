"""What a page can name: files, definitions in modules, flags of commands, targets of the Makefile, tests.

Sources are parsed, never imported.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from jaxpar.config.spelling import did_you_mean

SHARED = "jaxpar/cli.py"
PACKAGES = ("jaxpar", "pallas_kernels", "benchmarks", "tests")


@dataclass(frozen=True)
class Repository:
    """Paths of files and a function that reads them; it need not be on disk."""

    files: frozenset[str]
    read: Callable[[str], str]
    """The text of a file."""
    parser_flags: Callable[[str, Sequence[str]], Iterable[str] | None] = lambda module, words: None
    """Flags that a module accepts, given its arguments; None if they are to be found in its source."""

    @cached_property
    def folders(self) -> frozenset[str]:
        """Paths of all folders, each with a slash at its end."""
        return frozenset(path[: place + 1] for path in self.files for place, letter in enumerate(path) if letter == "/")

    @cached_property
    def top(self) -> frozenset[str]:
        """Names of the folders in the root."""
        return frozenset(folder.split("/")[0] for folder in self.folders)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all files, without folders."""
        return frozenset(posixpath.basename(path) for path in self.files)

    @cached_property
    def targets(self) -> frozenset[str]:
        """Targets of the Makefile."""
        rules = re.findall(r"^([\w-][\w -]*):(?!=)", self.read("Makefile"), re.MULTILINE)
        return frozenset(name for rule in rules for name in rule.split())

    @cached_property
    def tests(self) -> frozenset[str]:
        """Names of all test functions."""
        files = (path for path in self.files if re.fullmatch(r"tests/(.*/)?test_\w+\.py", path))
        return frozenset(
            name for path in files for name in re.findall(r"^def (test_\w+)", self.read(path), re.MULTILINE)
        )

    @cached_property
    def flags(self) -> frozenset[str]:
        """Flags of all commands, and of the tests."""
        commands = (
            path for path in self.files if re.fullmatch(r"(jaxpar|launch|benchmarks(/\w+)?|tests)/\w+\.py", path)
        )
        return frozenset(flag for path in commands for flag in self.flags_in(path))

    def flags_in(self, path: str) -> frozenset[str]:
        """Flags of the command in a file: its own, those that `jaxpar/cli.py` adds to every parser, and those that
        functions `add_...` of files beside it add."""
        text = self.read(path)
        if not re.search(r"argparse|addoption|\bParser\(", text):
            return frozenset()
        shared = flags_of(self.read(SHARED)) if SHARED in self.files and "jaxpar.cli" in text else frozenset()
        added = re.findall(r"^from (benchmarks[\w.]*) import .*\badd_", text, re.MULTILINE)
        others = (f"{module.replace('.', '/')}.py" for module in added)
        return flags_of(text) | shared | frozenset().union(*(self.flags_in(other) for other in others))

    @cached_property
    def definitions(self) -> Callable[[str], dict[str, ast.AST]]:
        """Top-level names of a file, each with the statement that defines it."""
        return cache(lambda path: _definitions(ast.parse(self.read(path))))

    def has(self, path: str) -> bool:
        """Whether a file or folder exists; a folder if `path` ends in a slash."""
        return path in self.files or path in self.folders or f"{path}/" in self.folders

    def near(self, path: str) -> str:
        """A clause that names the files or folders of the same name, if there are at most three."""
        folder = path.endswith("/")
        name = f"/{posixpath.basename(path.rstrip('/'))}{'/' if folder else ''}"
        found = sorted(other for other in (self.folders if folder else self.files) if f"/{other}".endswith(name))
        return f"; did you mean {' or '.join(found)}?" if 0 < len(found) <= 3 else ""

    def program(self, module: str) -> str | None:
        """The file that `python -m module` runs."""
        path = module.replace(".", "/")
        return next((file for file in (f"{path}.py", f"{path}/__main__.py") if file in self.files), None)

    def modules(self) -> Iterator[str]:
        """Dotted names of all modules."""
        for file in self.files:
            if file.endswith(".py") and file.split("/")[0] in PACKAGES:
                yield re.sub(r"(/__init__|/__main__)?\.py$", "", file).replace("/", ".")

    def unresolved(self, dotted: str) -> str | None:
        """Why a dotted name is neither a module nor defined in one; None if it is."""
        parts = dotted.split(".")
        if self.has(f"{dotted.replace('.', '/')}/"):
            return None
        for length in range(len(parts), 0, -1):
            module, path = ".".join(parts[:length]), "/".join(parts[:length])
            file = next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in self.files), None)
            if file is not None:
                return self._unresolved_in(module, file, parts[length:])
        return f"there is no module {dotted}{did_you_mean(dotted, self.modules())}"

    def _unresolved_in(self, module: str, file: str, names: list[str]) -> str | None:
        if not names:
            return None
        defined = self.definitions(file)
        if names[0] not in defined:
            inside = (other.removeprefix(f"{module}.") for other in self.modules() if other.startswith(f"{module}."))
            return f"{module} has no {names[0]}{did_you_mean(names[0], {*defined, *inside})}"
        match defined[names[0]]:
            case ast.ImportFrom(module=str() as source, names=aliases, level=0) if source.split(".")[0] in PACKAGES:
                original = next(alias.name for alias in aliases if (alias.asname or alias.name) == names[0])
                return self.unresolved(".".join([source, original, *names[1:]]))
            case ast.ClassDef(bases=[]) as node if len(names) > 1 and names[1] not in (inner := _attributes(node)):
                return f"{module}.{names[0]} has no {names[1]}{did_you_mean(names[1], inner)}"
        return None


def flags_of(source: str) -> frozenset[str]:
    """The strings of a module that are flags, such as `--steps`."""
    return frozenset(re.findall(r"""(?<=["'])--[a-z][\w-]*(?=["'])""", source))


def _definitions(node: ast.Module | ast.ClassDef | ast.If | ast.Try) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = each
            case ast.TypeAlias(name=ast.Name(id=name)) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = each
            case ast.Assign(targets=targets, value=value):
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
                found |= dict.fromkeys(names, each)
                if "__all__" in names:  # it also names what `__getattr__` imports lazily
                    words = [str(part.value) for part in ast.walk(value) if isinstance(part, ast.Constant)]
                    found = dict.fromkeys(words, each) | found
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name: each for alias in aliases}
            case ast.If() | ast.Try():
                found |= _definitions(each)
    return found


def _attributes(node: ast.ClassDef) -> set[str]:
    """Names that a class defines, and attributes that its methods set."""
    stored = (part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store))
    return {*_definitions(node), *(part.attr for part in stored)}
