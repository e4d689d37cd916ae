"""`python -m jaxpar.plan`: what it prints and writes, and that what it writes trains."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import config_to_yaml
from jaxpar.layout.plan_file import read
from jaxpar.plan import main
from jaxpar.train import main as train
from tests.sentences import refused_by_command
from tests.small_run import small

BUDGET = ["budget", "--cluster", "h100:1x8", "--gpus", "8:16", "--tokens", "1e9", "--price", "2"]
PREDICTED = {"step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_bytes", "breakdown"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("plans")
    (where / "small.yaml").write_text(config_to_yaml(small(parallel={"fsdp": 8}, run={"name": "small"})))
    return where


@pytest.fixture(scope="module")
def planned(folder: Path) -> Path:
    """A plan for this machine's virtual devices."""
    file = folder / "plan.json"
    assert main(["--config", str(folder / "small.yaml"), "--cluster", "cpu:1x8", "--out", str(file), "--top", "2"]) == 0
    return file


def run_plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_is_a_list_with_the_best_first(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run_plan(
        capsys, "--config", folder / "small.yaml", "--cluster", "h100:1x4", "--top", 3, "--json", "--out",
        folder / "h100.json", "--set", "data.sequence_length=64", "--no-verify",
    )  # fmt: skip
    files: list[dict[str, Any]] = json.loads(out)
    found = [file["predicted"] for file in files]
    assert code == 0
    assert len(found) == 3
    assert all(set(one) >= PREDICTED for one in found)
    assert [one["step_time_s"] for one in found] == sorted(one["step_time_s"] for one in found)
    assert sum(found[0]["breakdown"].values()) == pytest.approx(found[0]["step_time_s"])
    assert sum(found[0]["memory"].values()) == found[0]["peak_bytes"]
    assert json.loads((folder / "h100.json").read_text()) == files[0]


@pytest.mark.long
def test_a_plan_for_this_machine_trains(planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sets = [f"run.dir={tmp_path}", "run.steps=2", "evaluation.batches=0", "watch.limits.spike=null"]
    assert train(["--plan", str(planned), *(word for one in sets for word in ("--set", one))]) == 0
    ran = tmp_path / "small" / "plan.json"
    assert read(ran).plan == read(planned).plan
    assert train(["--plan", str(ran), "--set", "run.name=again"]) == 0
    assert read(tmp_path / "again" / "plan.json").plan == read(planned).plan
    capsys.readouterr()


@pytest.mark.long
def test_auto_plans_for_the_machine_at_hand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = (folder / "small.yaml").read_text()
    before, _, after = text.partition("\nparallel:")
    after = after[after.index("\nprecision:") :]
    (folder / "auto.yaml").write_text(f"{before}\nparallel: auto\n{after}")
    sets = [f"run.dir={tmp_path}", "run.steps=1", "evaluation.batches=0", "watch.limits.spike=null"]
    assert train(["--config", str(folder / "auto.yaml"), *(word for one in sets for word in ("--set", one))]) == 0
    axes = json.loads((tmp_path / "small" / "plan.json").read_text())["plan"]["axes"]
    product = 1
    for size in axes.values():
        product *= size
    assert product == 8
    capsys.readouterr()


def test_explain_reports_what_was_written(folder: Path, capsys: pytest.CaptureFixture[str]):
    other = folder / "other.json"
    run_plan(capsys, "--config", folder / "small.yaml", "--cluster", "cpu:1x8", "--fix", "tensor=2", "--out", other)
    code, out, _ = run_plan(capsys, "explain", other)
    assert code == 0
    assert "tensor 2" in out and "tokens/s/GPU" in out
    plain = json.loads(other.read_text())
    plain["predicted"]["interval_s"] = [1.5, 2.5]
    other.write_text(json.dumps(plain))
    assert "1.50 s to 2.50 s" in run_plan(capsys, "explain", other)[1]


def test_a_budget_has_a_row_for_each_number_of_gpus(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run_plan(
        capsys, "budget", "--config", folder / "small.yaml", "--cluster", "h100:1x8", "--gpus", "2:8",
        "--tokens", "1e9", "--price", "2", "--days", "3", "--json",
    )  # fmt: skip
    costs = json.loads(out)["costs"]
    assert code == 0
    assert [one["gpus"] for one in costs] == [2, 4, 8]
    for one in costs:
        assert one["price"] == pytest.approx(one["days"] * 24 * one["gpus"] * 2)
        assert one["days"] == pytest.approx(1e9 / one["tokens_per_s"] / 86400)
        size = one["optimal"]
        assert size["tokens"] == pytest.approx(20 * size["parameters"])
        assert 6 * size["parameters"] * size["tokens"] == pytest.approx(one["mfu"] * 989.4e12 * one["gpus"] * 3 * 86400)


def test_every_time_of_a_budget_has_an_interval(folder: Path, capsys: pytest.CaptureFixture[str]):
    usual = ["budget", "--config", folder / "small.yaml", "--gpus", "4:8", "--tokens", "1e9", "--price", "2"]
    _, out, _ = run_plan(capsys, *usual, "--cluster", "h100:1x8", "--json")
    for one in json.loads(out)["costs"]:
        low, high = one["steps_interval"]
        assert low < one["days"] < high and low * high == pytest.approx(one["days"] ** 2)
        assert one["days_interval"][1] / one["total"]["days"] == pytest.approx(high / one["days"])
    _, out, _ = run_plan(capsys, *usual, "--cluster", "cpu:1x8", "--json")
    assert all(one["steps_interval"] is None for one in json.loads(out)["costs"])


def test_a_budget_counts_failures_and_energy_and_a_power_cap_saves_energy(folder: Path, capsys):
    usual = ["budget", "--config", folder / "small.yaml", "--cluster", "h100:1x8", "--gpus", "8:8", "--tokens", "1e9"]
    found = {}
    for name, more in (("usual", []), ("frail", ["--mtbf", "8"]), ("capped", ["--power-cap", "400"])):
        code, out, _ = run_plan(capsys, *usual, "--price", "2", "--json", *more)
        assert code == 0
        (found[name],) = json.loads(out)["costs"]
    one = found["usual"]
    assert one["failures"]["days"] == pytest.approx(one["days"] / one["failures"]["training_share"])
    assert one["days_interval"][0] < one["total"]["days"] < one["days_interval"][1]
    assert one["kwh"] == pytest.approx(0.7 * 8 * 24 * one["total"]["days"])
    assert found["frail"]["failures"]["mtbf_hours"] == 1 and found["frail"]["failures"]["training_share"] < 0.9
    assert one["spares"] == {"hosts": 0, "price": 0} and found["frail"]["spares"]["hosts"] > 0
    spares = found["frail"]["spares"]
    assert spares["price"] == pytest.approx(found["frail"]["total"]["price"] * spares["hosts"])
    assert one["failures"]["stall_seconds"] < one["failures"]["save_seconds"]
    assert found["capped"]["days"] >= one["days"] and found["capped"]["kwh"] < one["kwh"]


def test_a_budget_counts_stragglers_beyond_those_of_the_step(folder: Path, capsys: pytest.CaptureFixture[str]):
    usual = ["budget", "--config", folder / "small.yaml", "--cluster", "h100:1x8", "--gpus", "8:32", "--tokens", "1e9"]
    for share in (0.104, 0.3):
        given = [] if share == 0.104 else ["--stragglers", share]
        code, out, _ = run_plan(capsys, *usual, "--price", "2", "--json", *given)
        costs = json.loads(out)["costs"]
        assert code == 0
        for one in costs:
            lost, trained = one["stragglers"], one["failures"]["training_share"]
            assert lost["share"] == share and (lost["in_step"] > 0) == (one["gpus"] > 8)
            # All time lost to them, that in the step included, over all time but failures'.
            assert (lost["in_step"] * one["days"] + lost["days"]) / (one["days"] + lost["days"]) == pytest.approx(share)
            assert one["total"]["days"] == pytest.approx((one["days"] + lost["days"]) / trained)
            assert one["total"]["price"] == pytest.approx((one["price"] + lost["price"]) / trained)
    code, out, _ = run_plan(capsys, *usual, "--price", "2", "--json", "--stragglers", "0")
    one = json.loads(out)["costs"][-1]
    assert one["stragglers"]["share"] == one["stragglers"]["in_step"] > 0 == one["stragglers"]["days"]


def test_a_budget_states_which_numbers_have_no_layout(folder: Path, capsys: pytest.CaptureFixture[str]):
    usual = ["--cluster", "h100:1x8", "--tokens", "1e9", "--price", "2"]
    short = ["--set", "data.batch_size=1", "--set", "data.sequence_length=8"]
    arguments = ["budget", "--config", folder / "small.yaml", *usual, *short]
    code, out, _ = run_plan(capsys, *arguments, "--gpus", "2:16")
    assert code == 0
    assert "16 GPUs are left out: no layout of 16 GPUs is allowed: " in out
    assert "but for data.batch_size (1) over replica" in out
    code, out, err = run_plan(capsys, *arguments, "--gpus", "16:16")
    assert (code, out) == (2, "")
    assert "no layout at any of these numbers; no layout of 16 GPUs is allowed" in err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--cluster", "cpu:8"], "'cpu:8' | cpu:hosts x devices"),
        (["--cluster", "h100:1x8", "--fix", "tensor=5"], "70 | --fix tensor=5"),
        (["--cluster", "h100:99999999x8"], "799999992 | at most 1048576"),
        (["--cluster", "h100:1x8", "--profile", "nowhere.json"], "nowhere.json | no such file"),
        (["--cluster", "h100:1x2", "--out", "/nowhere/plan.json"], "plan.json | cannot be written"),
        ([*BUDGET, "--gpus", "12:24"], "12 GPUs | hosts of 8"),
        ([*BUDGET, "--gpus", "16:8"], "16:8 | smaller first"),
        ([*BUDGET, "--price", "-1"], "--price -1 | above 0"),
        ([*BUDGET, "--days", "0"], "--days 0 | above 0"),
        ([*BUDGET, "--stragglers", "1.5"], "--stragglers 1.5 | share"),
        ([*BUDGET, "--power-cap", "5000"], "--power-cap 5000"),
    ],
)
def test_what_is_wrong_is_one_sentence(folder: Path, capsys, arguments: list[str], parts: str):
    refused_by_command(*run_plan(capsys, *arguments, "--config", folder / "small.yaml"), *parts.split(" | "))


def test_a_plan_that_is_none_is_one_sentence(folder: Path, planned: Path, capsys: pytest.CaptureFixture[str]):
    none = folder / "none.json"
    none.write_text(json.dumps({"cluster": "h100:1x8", "plan": {}}))
    missing = "no plan.json, because version and predicted and config are missing"
    refused_by_command(*run_plan(capsys, "explain", none), missing)
    refused_by_command(train(["--plan", str(none)]), *capsys.readouterr(), missing)
    assert train(["--plan", str(planned), "--config", str(folder / "small.yaml")]) == 2
    assert "expected no --config with it" in capsys.readouterr().err


def test_auto_with_a_written_axis_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]):
    status = train(["--config", str(folder / "small.yaml"), "--set", "parallel.auto=true"])
    refused_by_command(status, *capsys.readouterr(), "parallel.fsdp: 8", "would not be used", "parallel: auto")
