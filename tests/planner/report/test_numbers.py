"""Every number of the model of time names its source: a paper and its table, a datasheet, rows of a file, a count of
our programs; the rest is listed as assumed."""

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from jaxpar.cost import hardware_model
from jaxpar.cost.hardware_model import HOPPER, described, hardware_of
from jaxpar.hardware import catalogue
from jaxpar.hardware.catalogue import GPUS, gpu_named
from jaxpar.planner.report.numbers import modules, numbers, numbers_of, source_lines

ROOT = Path(__file__).parents[3]
OF_A_GPU = (catalogue, hardware_model)
"""Modules of tables with a source for each GPU or each parameter, which tests below open."""
ALL_NUMBERS = ("jaxpar.cost.", "jaxpar.trace.", "jaxpar.planner.step_time.")
"""Packages in which whole numbers are asked for a source too."""
ROUNDING = 1e-6
"""Numbers of formulas that are smaller keep sums of floats in order."""


def literals(node: ast.AST, whole: bool) -> list[float]:
    """Numbers that are written in an expression, quotients of two among them; whole ones only where asked for."""
    found = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    for one in ast.walk(node):
        match one:
            case ast.BinOp(ast.Constant(int() as above), ast.Div(), ast.Constant(int() as below)):
                found.append(above / below)
    return [one for one in found if isinstance(one, float) or (whole and type(one) is int)]


def without_source(module: ModuleType) -> Iterator[str]:
    """Names of constants of a module that have numbers and no source; and numbers inside of its functions."""
    whole, known = module.__name__.startswith(ALL_NUMBERS), {one.name.rsplit(".")[-1] for one in numbers_of(module)}
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.Assign(value=ast.Subscript(value=ast.Name("Annotated"))):
                continue  # the bounds of a type
            case ast.Assign(targets=targets) if literals(node.value, whole):
                yield from (name for one in targets if (name := ast.unparse(one)) not in known)
            case ast.AnnAssign(value=ast.expr() as value) if literals(value, whole):
                yield from {ast.unparse(node.target)} - known
            case ast.FunctionDef() | ast.ClassDef() if module.__name__.startswith(ALL_NUMBERS):
                yield from (str(one) for one in literals(node, whole=False) if one % 1 > ROUNDING)


def test_numbers_have_a_source() -> None:
    found = {one.__name__: list(without_source(one)) for one in modules() if one not in OF_A_GPU}
    assert {name: lacking for name, lacking in found.items() if lacking} == {}
    assert len(found) > 100


def test_a_number_without_a_source_is_found() -> None:
    module = ModuleType("jaxpar.cost.example")
    text = "SHARE = 0.9\nNAMED: int = 3\n\ndef of(x):\n    return 2.0 * x + 0.25 + 1 / 8\n"
    module.__file__, spec = "example", importlib.util.spec_from_loader("jaxpar.cost.example", None)
    module.__spec__ = spec
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inspect, "getsource", lambda _: text)
        assert list(without_source(module)) == ["SHARE", "NAMED", "0.25", "0.125"]


def test_sources_that_were_measured_here_exist() -> None:
    found = [one.source for one in numbers()]
    found += [source for gpu in GPUS for *_, source in described(hardware_of(gpu), gpu)]
    for kind, text in found:
        assert text
        if kind == "measured" and not text.startswith("calibrate"):
            name = text.removeprefix("python -m ").split()[0].rstrip(":,")
            assert (ROOT / name).is_file() or importlib.util.find_spec(name) is not None, text


def test_meanings_are_the_sentences_below_the_numbers() -> None:
    assert [one.name for one in numbers() if not one.meaning] == []


def test_gpus_name_their_sources() -> None:
    for gpu in GPUS:
        assert gpu.source and all(link.source for link in (gpu.node, gpu.host, gpu.network)), gpu.name


def test_shares_of_a_gpu_that_no_run_was_on_are_assumed() -> None:
    kinds = lambda name: {one[0]: one[-1].kind for one in described(hardware_of(gpu_named(name)), gpu_named(name))}
    assert kinds("h100")["matmul_share"] == "measured" and kinds("h200")["matmul_share"] == "assumed"
    assert kinds("h200")["node_share"] == "measured", "no share of a GPU alone"
    assert kinds("b200")["float8_share"] == "measured" and kinds("b200")["matmul_share"] == "assumed"


def test_numbers_of_a_profile_are_measured_on_the_machine() -> None:
    h200 = gpu_named("h200")
    own = {one[0]: one[-1] for one in described(HOPPER.__class__(**vars(HOPPER) | {"matmul_share": 0.6}), h200)}
    assert own["matmul_share"].text.startswith("calibrate") and own["attention_share"].kind == "assumed"


def test_assumed_numbers_are_listed_apart() -> None:
    found = numbers()
    lines = source_lines(found, "assumed")
    assert len(lines) == sum(one.source.kind == "assumed" for one in found) > 0
    assert any(line.startswith("hardware.power.EXPONENT = 2.4: ") for line in lines)
