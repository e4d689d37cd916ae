"""YAML in and out, with the scalars of YAML 1.2: `1e-3` is a number, `10:15` and `on` are text.

PyYAML's own rules are YAML 1.1, where `1e-3` is text and `10:15` is 615. Only plain scalars, lists and mappings are
ever made; tags, and keys that appear twice, are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import cut, quoted

_NULL = "tag:yaml.org,2002:null"
_SCALARS = [
    (_NULL, r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9](?:_?[0-9]){0,300}", list("-+0123456789")),
    ("tag:yaml.org,2002:float", r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
]


@dataclass(frozen=True)
class Located:
    """A value and the line of the file it stands on, counted from 1."""

    line: int
    value: Any


DEEPEST = 20
"""Limit for the nesting of a document; nothing here needs more than four levels."""

MOST_VALUES = 100_000
"""Limit for the values of a document with its aliases expanded; nested aliases could exhaust memory."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}
    _depth = 0

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}
        """Values and levels of each finished node, with its aliases expanded."""
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, "tags (!) have no meaning here", event.start_mark)
        # Each level takes several frames of the stack, of which Python has a thousand.
        self._depth += 1
        if self._depth > DEEPEST:
            raise ComposerError(None, None, f"nested more than {DEEPEST} deep", event.start_mark)
        node = super().compose_node(parent, index)
        if node is not None:
            self._count(node, event)
        self._depth -= 1
        return node

    def _count(self, node: yaml.Node, event: yaml.Event) -> None:
        """The size of an alias is that of its anchor, so nothing is expanded to be counted."""
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise ComposerError(None, None, f"the alias *{event.anchor} is part of itself", event.start_mark)
            values, levels = self._sizes[node]
            self._values += values
        else:
            parts: list[yaml.Node] = []
            if isinstance(node, yaml.MappingNode):
                parts = [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                parts = node.value
            sizes = [self._sizes[part] for part in parts]
            values, levels = 1 + sum(size for size, _ in sizes), 1 + max((deep for _, deep in sizes), default=0)
            self._sizes[node] = values, levels
            self._values += 1
        if self._values > MOST_VALUES:
            words = f"more than {MOST_VALUES} values, aliases written out"
            raise ComposerError(None, None, words, event.start_mark)
        if self._depth - 1 + levels > DEEPEST:
            raise ComposerError(None, None, f"nested more than {DEEPEST} deep", event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping that is the value of a key; of names that appear twice YAML would silently take the last."""
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise ConstructorError(None, None, "a name appears twice in a mapping", node.start_mark)
        return mapping


class _Dumper(yaml.SafeDumper):
    pass


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote what this module would not read as text; the dumper itself quotes what YAML 1.1 would not."""
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], [])
    style = "'" if any(pattern.match(text) for _, pattern in resolvers) else None
    if any(line_break in text for line_break in "\n\r\x85\u2028\u2029"):
        style = '"'  # the only style whose line breaks PyYAML reads back unchanged
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def parse_value(text: str) -> Any:
    """The value of a piece of YAML, such as the right-hand side of an override.

    Raises:
        UserError: the text is not valid YAML.
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise UserError(f"{quoted(text)} is not valid YAML ({_problem(error)})") from None


def parse_document(text: str, source: str) -> dict[str, Located]:
    """The top-level mapping of a document; a value that is a mapping has `Located` values in its turn.

    Raises:
        UserError: the text is not YAML or not a mapping, or a name appears twice; the sentence begins `source:line:`.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None or root.tag == _NULL:
            return {}
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else repr(root.value)
            raise UserError(f"{source}:{_line(root)}: expected a mapping of sections, got {kind}")
        located: dict[str, Located] = {}
        for name, line, node in _pairs(root, source):
            if isinstance(node, yaml.MappingNode):
                keys = _pairs(node, source)
                value = {key: Located(at, loader.construct_object(leaf, deep=True)) for key, at, leaf in keys}
            else:
                value = loader.construct_object(node, deep=True)
            located[name] = Located(line, value)
        return located
    except yaml.YAMLError as error:
        raise UserError(f"{source}:{_error_line(error, text)}: not valid YAML ({_problem(error)})") from None


def to_yaml(plain: dict[str, Any], *, rows: bool = False) -> str:
    """YAML text that this module, and any YAML 1.1 reader, reads back as the same value; with `rows`, a mapping or list
    of scalars is on one line."""
    flow = None if rows else False
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=flow)


def _pairs(mapping: yaml.MappingNode, source: str) -> list[tuple[str, int, yaml.Node]]:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{source}:{_line(key)}: expected a name before the colon, got a {key.id}")
        if not key.value.isprintable():
            raise UserError(f"{source}:{_line(key)}: {quoted(key.value, 40)} has characters that no name has")
        if key.value in lines:
            raise UserError(
                f"{source}:{_line(key)}: {cut(key.value, 80)} appears twice, first on line {lines[key.value]}"
            )
        lines[key.value] = _line(key)
    return [(key.value, _line(key), value) for key, value in mapping.value]


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _error_line(error: yaml.YAMLError, text: str) -> int:
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read")
