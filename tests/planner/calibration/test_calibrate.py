"""`calibrate`: a model's shapes, attention, copies and collectives are measured and written, with what could not be."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import config_to_yaml
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.cost.operations import device_of
from jaxpar.cost.tables import Asked, Row, Table, Tables
from jaxpar.plan import main
from jaxpar.planner.calibration import calibrate
from jaxpar.planner.calibration.calibrate import DEFAULT_ON_CPU, Calibration, Sizes
from jaxpar.planner.calibration.collectives import groups
from jaxpar.planner.calibration.compute import matmuls_of
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.profile import Profile, read_profile
from jaxpar.planner.report.numbers import table_lookups
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.launch.loading import ROOT
from tests.patience import seconds
from tests.planner.spaces import model_of
from tests.sentences import refused_by_command
from tests.small_run import small

ALIKE = small(model={"mlp": 32, "vocab": 32, "activation": "gelu"})
"""A decoder with few different products."""
TINY = Sizes(sequences=(1,), tensor=(1,), lengths=(32,), memory=2**12, copies=2**12, messages=(), loop_s=1e-6)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "small.yaml").write_text(config_to_yaml(ALIKE))
    file = folder / "hardware.yaml"
    with pytest.MonkeyPatch.context() as patched:
        # Operations as small as these take less than ten launches where the machine does other work.
        patched.setattr(Stopwatch, "measure_launch", lambda watch: setattr(watch, "launch_s", 1e-9))
        return file, Calibration(file, folder / "small.yaml", sizes=TINY).run()


def test_what_is_measured_is_written_and_read_back(measured: tuple[Path, Profile]):
    file, profile = measured
    cluster = named_cluster("cpu:1x8")
    model, linked, read = read_profile(file, cluster)
    assert [(one.m, one.n, one.k, one.adds) for one in read.matmuls] == [
        (one.m, one.n, one.k, one.adds) for one in profile.matmuls
    ]
    kept = len(profile.matmuls) + sum(line.startswith("matmul ") for line in profile.refused)
    assert kept == len(matmuls_of(ALIKE, cluster, (1,), (1,)))
    for one in profile.attention:
        assert (one.backend, one.length, one.heads, one.width, one.keys) == ("xla", 32, 8, 4, 16.5)
    assert profile.links["memory_bandwidth"] > 0
    assert read.date and read.versions["jax"] == jax.__version__
    assert read.could_not_measure == profile.could_not_measure
    assert profile.could_not_measure[0].startswith("messages between hosts: all devices are in one host")
    # Eight devices share what one of them had alone.
    first = profile.matmuls[0]
    rows = model.measured.rows[Table("matmul", (4, first.adds))]
    assert rows[0].sizes == (first.m, first.n, first.k)
    assert rows[0].seconds == pytest.approx(8 * first.seconds, rel=1e-4)
    assert linked.gpu.training_peak == pytest.approx(profile.links["peak_flops"], rel=1e-4)


@pytest.mark.long
def test_two_processes_measure_their_messages_and_the_first_writes(tmp_path: Path):
    """A real job of two processes over Gloo, with sizes that say nothing about the machine."""
    config, file = tmp_path / "small.yaml", tmp_path / "hardware.yaml"
    config.write_text(config_to_yaml(ALIKE))
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path; "
        "from jaxpar.planner.calibration.stopwatch import Stopwatch; "
        "from tests.planner.calibration.test_calibrate import TINY, Calibration; "
        "Stopwatch.measure_launch = lambda watch: setattr(watch, 'launch_s', 1e-9); "
        "Calibration(Path(sys.argv[1]), Path(sys.argv[2]), sizes=replace(TINY, messages=(4096, 16384))).run()"
    )
    launcher = [sys.executable, str(ROOT / "launch/local.py"), "--processes", "2", "--devices-per-process", "1", "--"]
    command = [*launcher, sys.executable, "-c", code, str(file), str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds(240), check=False)
    assert done.returncode == 0, done.stderr
    assert f"[0] Wrote {file}" in done.stdout and "[1] Wrote" not in done.stdout
    _, _, profile = read_profile(file, named_cluster("cpu:1x2"))
    assert (profile.processes, profile.devices) == (2, 2)
    words = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
    refused = sum(any(line.startswith(word) for word in words) for line in profile.refused)
    assert len(profile.collectives) + refused == 2 * len(words) and len(profile.collectives) > len(words)
    assert all(one.ranks == 2 and one.hosts == 1 for one in profile.collectives)
    gathers = [one.seconds for one in profile.collectives if one.collective == "all_gather"]
    if len(gathers) == 2:  # none refused as too noisy
        assert profile.model["message_seconds"] + profile.links["node_latency"] == pytest.approx(gathers[0], rel=1e-4)


def test_a_plan_names_what_was_measured_and_what_was_not(
    measured: tuple[Path, Profile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, _ = measured
    words = ["--config", str(file.parent / "small.yaml"), "--cluster", "cpu:1x8", "--top", "1"]
    assert main([*words, "--out", str(tmp_path / "plan.json"), "--profile", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"Measured, and by fitted shares where nothing near was ({file}: 8 x cpu, " in out
    counts = out.partition("where nothing near was")[2].partition("\n")[0]
    assert all(re.search(rf"\d+ of [1-9]\d* {kind}", counts) for kind in ("matmul shapes", "attention kernels"))
    assert "0 of " in counts, "messages"


def test_twice_as_slow_a_table_is_twice_the_compute_and_no_table_changes_nothing():
    config = model_of()
    cluster = named_cluster("h100:1x8")
    fixed = {"tensor": "2", "context": "1", "pipe": "1", "microbatch": "1"}
    usual = Search(Space(config, cluster, fixed))
    best = usual.best(1)[0].candidate
    shapes = matmuls_of(config, cluster, (1,), (1, 2))
    formula = device_of(cluster.gpu, HOPPER)
    rows: dict[Table, list[Row]] = {}
    for table, sizes, _ in shapes:
        item, adds = table.of
        m, n, k = (int(size) for size in sizes)
        span = 2 * formula.matmul(m, n, k, 1, 8 if adds else item, item)
        rows.setdefault(table, []).append(Row(sizes, span))
    slow = Search(Space(config, cluster, fixed), hardware=replace(HOPPER, measured=Tables(rows)))
    slower = slow.timer.step(best.layout)
    assert slower.breakdown["matmuls"] == pytest.approx(2 * best.time.breakdown["matmuls"], rel=1e-6)
    assert slower.seconds > 1.2 * best.seconds
    products = [one for one in table_lookups(slow.timer, best.layout) if one.table.what == "matmul"]
    assert products and all(one.measured for one in products), "the grid is what the time model asks for"
    empty = Search(Space(config, cluster, fixed), hardware=replace(HOPPER, measured=Tables({})))
    assert empty.timer.step(best.layout) == usual.timer.step(best.layout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "nowhere/x.yaml"], "the folder nowhere does not exist"),
        (["--devices", "0"], "expected a whole number from 1 up"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_measured(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code = main(["calibrate", *arguments])
    out, err = capsys.readouterr()
    refused_by_command(code, out, err, expected)
    assert list(tmp_path.iterdir()) == []


def test_tensor_ranks_that_a_model_cannot_have_are_left_out():
    """Of experts their width is divided, and not that of dense layers."""

    def of(*ranks: int, **keys: Any) -> list[Asked]:
        config = replace(DEFAULT_ON_CPU, model=replace(DEFAULT_ON_CPU.model, **keys))
        return matmuls_of(config, named_cluster("cpu:1x8"), (1,), ranks)

    assert of(1, 2, 4, heads=4, kv_heads=4) == of(1, 2, 4, 8, heads=4, kv_heads=4)
    wide, odd = ({"mlp": 383, "experts": ExpertsConfig(count=4, width=width)} for width in (256, 255))
    assert len(of(1, 2, **wide)) > len(of(1, **wide)) and of(1, 2, **odd) == of(1, **odd)


def test_groups_are_of_neighbours_and_across_hosts_one_of_each_kind():
    assert groups(1, 1) == []
    assert groups(8, 8) == [(2, 1, 1), (4, 1, 1), (8, 1, 1)]
    assert groups(6, 6) == [(2, 1, 1), (3, 2, 1), (6, 1, 1)]
    found = {(one.ranks, one.hosts): one.stride for one in groups(16, 8)}
    assert found == {(2, 1): 1, (4, 1): 1, (8, 1): 1, (16, 2): 1, (8, 2): 2, (4, 2): 4, (2, 2): 8}


H100 = "NVIDIA H100 80GB HBM3"
IN_BFLOAT16 = replace(ALIKE, precision=replace(ALIKE.precision, compute="bfloat16"))
ON_GPU = replace(TINY, lengths=(32, 64), copies=2**14, messages=(2**12,), loop_s=1e-5)


class Gpu:
    """A device of another name."""

    platform, device_kind = "gpu", H100

    def __init__(self, own: Any):
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


@pytest.fixture(scope="module")
def on_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    """The file and the profile of one GPU, a CPU that goes by the name of an H100."""
    folder = tmp_path_factory.mktemp("gpu")
    gpu, copies, file = Gpu(jax.devices()[0]), calibrate.compute.copy_rate, folder / "hardware.yaml"
    (folder / "small.yaml").write_text(config_to_yaml(IN_BFLOAT16))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calibrate, "find_devices", lambda: [gpu])
        patched.setattr(calibrate.jax, "local_devices", lambda: [gpu])
        patched.setattr(calibrate.compute, "copy_rate", lambda watch, device, sizes: copies(watch, device.own, sizes))
        patched.setattr(Stopwatch, "measure_launch", lambda watch: setattr(watch, "launch_s", 1e-9))
        return file, Calibration(file, folder / "small.yaml", sizes=ON_GPU).run()


def test_plans_for_such_gpus_read_its_tables_and_keep_the_shares_of_the_rest(on_a_gpu: tuple[Path, Profile]):
    file, profile = on_a_gpu
    assert (profile.device, profile.devices, profile.processes) == (H100, 1, 1)
    assert {one.dtype for one in profile.matmuls} == {"bfloat16"} and not profile.collectives
    cluster = named_cluster("h100:2x8")
    model, linked, _ = read_profile(file, cluster)
    assert set(profile.model) == {"memory_share"} and set(profile.links) == {"host_bandwidth"}
    assert model.memory_share == pytest.approx(profile.model["memory_share"], rel=1e-4) != HOPPER.memory_share
    assert (model.matmul_share, model.node_share) == (HOPPER.matmul_share, HOPPER.node_share)
    assert linked.host_bandwidth == pytest.approx(profile.links["host_bandwidth"], rel=1e-4)
    one = profile.matmuls[0]
    rows = model.measured.rows[Table("matmul", (2, one.adds))]
    assert rows[0].seconds == pytest.approx(one.seconds, rel=1e-4), "a GPU shares its own with none"
    assert not any(table.what in ("gather", "all_reduce", "permute") for table in model.measured.rows)
