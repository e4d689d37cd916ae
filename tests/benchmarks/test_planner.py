"""The table of predictions is put into docs/prediction-errors.md, and shipped configurations are priced."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner.shipped import compared, shipped, table
from benchmarks.validation.page import MARKS, PAGE, with_table
from jaxpar.config import Config, config_to_yaml
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.step_time.model import step_time
from jaxpar.planner.step_time.update import update_of
from tests.sentences import refused
from tests.small_run import small

BEGIN, END = MARKS


def test_the_table_is_put_between_the_marks_of_the_page_and_again_there():
    page = PAGE.read_text()
    once = with_table(page, ["| a |", "|---|", "| 1 |"])
    assert once.startswith(page.split(BEGIN)[0]) and once.endswith(page.split(END)[1])
    assert f"{BEGIN}\n\n| a |\n|---|\n| 1 |\n\n{END}" in once
    assert with_table(with_table(page, ["| older |"]), ["| a |", "|---|", "| 1 |"]) == once


@pytest.mark.parametrize("page", ["none", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END])
def test_a_page_without_a_place_is_a_sentence(page: str):
    with refused("prediction-errors.md", BEGIN, END, "once"):
        with_table(page, [])


def config_of(remat: Any) -> Config:
    return small(
        model={"layers": 4, "embed": 512, "heads": 8, "mlp": 2048, "vocab": 1024},
        parallel={"fsdp": 8, "zero": 3, "microbatches": 2}, memory={"remat": remat},
        data={"sequence_length": 1024, "batch_size": 16}, precision={"compute": "bfloat16"},
    )  # fmt: skip


def test_a_shipped_configuration_is_priced_beside_the_planners_first(tmp_path: Path):
    """The plan that the file sets, as it stands, and the first of the command that it names, both by the same model."""
    config = config_of("full")
    file = tmp_path / "own.yaml"
    head = "# A model.\n#   python -m jaxpar.plan --config configs/own.yaml --cluster h100:1x8 --avoid offload\n"
    file.write_text(head + config_to_yaml(config))
    (tmp_path / "laptop.yaml").write_text("run: {name: laptop}\n")
    (one,) = shipped(tmp_path)
    assert (one.cluster, one.fixed, one.avoided) == ("h100:1x8", (), ("offload",))
    row = compared(one)
    own, first = row["shipped"], row["planner"]
    assert own["mesh"] == "fsdp 8" and own["microbatch"] == 1
    assert row["of_planner"] == own["seconds"] / first["seconds"] > 1.0, "it recomputes everything for nothing"
    layout = Layout(fsdp=8, zero=3, microbatch=1, remat="full")
    update = update_of(config)
    wanted = step_time(config.model, 1024, 16, layout, parse_cluster("h100:1x8"), update=update)
    assert own["seconds"] == pytest.approx(wanted.seconds, rel=0.05)
    printed = table([row]).splitlines()
    assert "own.yaml" in printed[1] and "of the planner's" in printed[2] and printed[3].split()[0] == "planner"


def test_a_configuration_that_sets_each_layer_is_priced_as_it_is(tmp_path: Path):
    """Between what its presets alone would take, and beside the memory that the planner would leave free."""
    seconds = {}
    head = "#   python -m jaxpar.plan --config configs/own.yaml --cluster h100:1x8 --avoid offload\n"
    mixture = [{"layers": "0-1", "preset": "full"}, {"layers": "2-3", "preset": "none"}]
    for name, remat in {"full": "full", "mixture": mixture, "none": "none"}.items():
        (tmp_path / "own.yaml").write_text(head + config_to_yaml(config_of(remat)))
        (one,) = shipped(tmp_path)
        row = compared(one)
        seconds[name] = row["shipped"]["seconds"]
    assert seconds["none"] < seconds["mixture"] < seconds["full"]
    assert seconds["mixture"] == pytest.approx((seconds["none"] + seconds["full"]) / 2, rel=0.02)
    assert "may be planned for" not in table([row])
    row["shipped"] |= {"bytes": 80 << 30, "usable": 70 << 30}
    assert "80.0 GiB of 70.0 GiB that may be planned for" in table([row])


def test_every_shipped_configuration_of_a_cluster_names_its_command():
    found = {one.file.stem: one.cluster for one in shipped()}
    assert found["llama3_8b"] == "h100:1x8" and {"llama3_70b", "llama3_405b", "gpt3_175b_32k"} <= {*found}


def test_a_command_with_other_options_is_refused(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("# python -m jaxpar.plan --config own.yaml --cluster h100:1x8 --top 3\n")
    with refused("own.yaml", "expected --config, --cluster, --fix and --avoid"):
        shipped(tmp_path)
