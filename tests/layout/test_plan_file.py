"""One format of `plan.json`: what it holds, files of before, and versions that are not read."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import jax
import pytest

from jaxpar.config import Config
from jaxpar.config.plan import PLAN_VERSION, Plan
from jaxpar.config.reading.typed import field_types
from jaxpar.distributed.devices import devices_per_node
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.plan_file import PlanFile, read, write
from jaxpar.plan import main as plan_command
from jaxpar.train import main as train
from tests.sentences import refused, refused_by_command
from tests.small_run import small

PREDICTED = {
    "step_time_s": 0.5, "tokens_per_s_per_gpu": 100.0, "mfu": 0.4, "peak_bytes": 10**9,
    "breakdown": {"matmuls": 0.5}, "memory": {"weights": 10**9},
}  # fmt: skip


def planned(**sections: dict[str, Any]) -> tuple[Config, Plan]:
    """A configuration for all virtual devices, and the plan that they have by themselves."""
    devices = jax.devices()
    config = resolve_config(small(**{"parallel": {"fsdp": 4, "tensor": 2}, **sections}), len(devices))
    return config, make_plan(config, devices[0], devices_per_node(devices))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A plan of the planner."""
    write(tmp_path / "plan.json", PlanFile(*planned(), "cpu:1x8", PREDICTED))
    return tmp_path / "plan.json"


def edit(file: Path, **keys: Any) -> dict[str, Any]:
    """Write a file again with other values."""
    plain = json.loads(file.read_text()) | keys
    file.write_text(json.dumps(plain))
    return plain


def test_what_is_written_is_read(file: Path):
    assert read(file) == PlanFile(*planned(), "cpu:1x8", PREDICTED)
    assert json.loads(file.read_text())["version"] == PLAN_VERSION
    write(file, PlanFile(*planned()))
    assert (read(file).cluster, read(file).predicted) == (None, {})


def test_of_a_list_the_first_is_read(file: Path):
    first = json.loads(file.read_text())
    file.write_text(json.dumps([first, first | {"cluster": "h100:1x8"}]))
    assert read(file).cluster == "cpu:1x8"


@pytest.mark.parametrize(
    "version", [pytest.param(PLAN_VERSION + 1, id="next"), PLAN_VERSION - 1, 0, -1, "1", 1.0, True, None, [1]]
)
def test_another_version_is_refused(file: Path, capsys: pytest.CaptureFixture[str], version: object):
    edit(file, version=version)
    expected = f"version {version}".lower() if not isinstance(version, str | None) else "version "
    parts = (str(file), expected, f"expected {PLAN_VERSION}")
    with refused(*parts):
        read(file)
    for command, arguments in ((train, ["--plan", file]), (plan_command, ["explain", file])):
        refused_by_command(command([str(one) for one in arguments]), *capsys.readouterr(), *parts)


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"layout": {}}, ("unknown key 'layout'",)),
        ({"cluster": 8}, ("cluster: expected text or null", "got 8")),
        ({"predicted": None}, ("predicted: expected names and values", "got null")),
        ({"plan": []}, ("plan: expected names and values", "got []")),
    ],
)
def test_a_file_that_was_edited_wrongly_is_one_sentence(file: Path, keys: dict[str, Any], parts: tuple[str, ...]):
    edit(file, **keys)
    with refused(str(file), *parts):
        read(file)


def numbers_of(record: type, prefix: str = "") -> list[str]:
    """The path in `plan.json` of every number of a record; `+` stands for an entry that a test adds."""
    found: list[str] = []
    for name, annotation in field_types(record).items():
        generic = is_dataclass(get_origin(annotation))
        for kind in (annotation,) if generic else get_args(annotation) or (annotation,):
            if kind in (int, float):
                found.append(f"{prefix}{name}" + ".+" * (get_origin(annotation) is tuple))
            elif is_dataclass(get_origin(kind) or kind):
                found += numbers_of(kind, f"{prefix}{name}." + "+." * (kind is not annotation))
    return found


def with_number(plain: Any, path: str, value: int) -> Any:
    """A JSON value with another number at a path."""
    if not path:
        return value
    name, _, rest = path.partition(".")
    if isinstance(plain, list):
        return [with_number(plain[0] if plain else {}, rest, value), *plain[1:]]
    return {**plain, name: with_number(plain.get(name, {}), rest, value)}


@pytest.mark.parametrize("value", [-5, 2**62 + 1])
def test_every_number_of_a_plan_has_a_range(file: Path, value: int):
    plain = json.loads(file.read_text())["plan"]
    paths = numbers_of(Plan)
    assert len(paths) > 20
    assert {"collectives_at_once", "axes.fsdp", "runs.+.layers", "experts.+.slices.name"} <= set(paths)
    for path in paths:
        edit(file, plan=with_number(plain, path, value))
        with refused(str(file), path.split(".")[0], "must be"):
            read(file)


@pytest.mark.parametrize("value", [-5, 10**12])
@pytest.mark.parametrize(
    ("section", "mapping"),
    [
        ("precision", {"matmul_options": {"first_layers": ...}}),
        ("precision", {"matmul_options": {"last_layers": ...}}),
        ("model", {"kinds": {"local": {"window": ...}}, "pattern": {"unit": ["local"]}}),
        ("model", {"experts": {"count": ...}}),
        ("model", {"latent_attention": {"kv_rank": ...}}),
        ("run", {"steps": ...}),
        ("parallel", {"microbatches": ...}),
    ],
)
def test_numbers_of_the_configuration_in_a_plan_have_their_ranges(file, section, mapping, value):
    config = json.loads(file.read_text())["config"]
    config[section] |= json.loads(json.dumps(mapping, default=lambda _: value))
    edit(file, config=config)
    with refused(str(file), f"{section}.{next(iter(mapping))}", "must be at", str(value)):
        read(file)


STAGE = {"group": "a", "gpu": "h100", "first": 0, "layers": [1]}


@pytest.mark.parametrize(
    ("key", "value"),
    [("interval_s", [0.1, -1.0]), ("interval_s", "fast"), ("host_bytes", -1), ("usable_bytes", float("nan")),
     ("node_order", [0, -1]), ("node_order", ["a"]), ("stages", [STAGE | {"first": 1}]), ("stages", [{"group": "a"}]),
     ("stages", [STAGE | {"layers": []}]), ("stages", [STAGE | {"layers": [-5]}]), ("stages", 7),
     pytest.param("mfu", 10**401, id="many digits"), ("mfu", 0), ("breakdown", {"matmuls": "x"})],
)  # fmt: skip
def test_predictions_have_their_types_and_ranges(file: Path, key: str, value: object):
    edit(file, predicted=PREDICTED | {"stages": [STAGE], "interval_s": [0.4, 0.6]})
    read(file)
    edit(file, predicted=PREDICTED | {key: value})
    with refused(str(file), key):
        read(file)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{", ("plan.json:1:", "not valid JSON")),
        ("[]", ("plan.json", "expected version, cluster", "got []")),
        ('{"version": 1, "version": 2}', ("plan.json", "version", "twice")),
        ('{"version": 1' + 5000 * "0" + "}", ("plan.json", "not usable JSON", "thousands of digits")),
        ("[" * 100_000, ("plan.json", "not usable JSON", "nests too deep")),
    ],
    ids=["not JSON", "a list of nothing", "twice", "many digits", "deep"],
)
def test_text_that_is_not_a_plan_is_one_sentence(tmp_path: Path, text: str, parts: tuple[str, ...]):
    (tmp_path / "plan.json").write_text(text)
    with refused(*parts):
        read(tmp_path / "plan.json")


def test_a_new_field_of_a_plan_raises_the_version():
    """Files of before lack it; the version tells. The number of fields, by version."""
    assert {20: 38}.get(PLAN_VERSION) == len(fields(Plan))


def test_a_run_has_no_cluster_to_place_nodes_of(file: Path, capsys: pytest.CaptureFixture[str]):
    write(file, PlanFile(*planned()))
    refused_by_command(plan_command(["place", str(file)]), *capsys.readouterr(), str(file), "cluster")
    assert plan_command(["explain", str(file)]) == 0
