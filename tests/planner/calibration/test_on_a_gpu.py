"""`calibrate` on one GPU, which is a CPU that goes by the name of an H100: all of it but the GPU's own speed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import config_to_yaml
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.cost.tables import Table
from jaxpar.planner.calibration import calibrate
from jaxpar.planner.calibration.calibrate import Calibration, Sizes
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.profile import Profile, read_profile
from tests.small_run import small

H100 = "NVIDIA H100 80GB HBM3"
CONFIG = small(model={"mlp": 32, "vocab": 32, "activation": "gelu"}, precision={"compute": "bfloat16"})
SIZES = Sizes(
    sequences=(1,), tensor=(1,), lengths=(32, 64), memory=2**12, copies=2**14, messages=(2**12,), loop_s=1e-5
)  # fmt: skip


class Gpu:
    """A device of another name."""

    platform, device_kind = "gpu", H100

    def __init__(self, own: Any):
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def calibrated(
    folder: Path, patched: pytest.MonkeyPatch, launch_s: float, sizes: Sizes = SIZES
) -> tuple[Path, Profile]:
    """The file and the profile of one such GPU, whose smallest kernel takes `launch_s`."""
    gpu, copies, file = Gpu(jax.devices()[0]), calibrate.compute.copy_rate, folder / "hardware.yaml"
    (folder / "small.yaml").write_text(config_to_yaml(CONFIG))
    patched.setattr(calibrate, "find_devices", lambda: [gpu])
    patched.setattr(calibrate.jax, "local_devices", lambda: [gpu])
    patched.setattr(calibrate.compute, "copy_rate", lambda watch, device, sizes: copies(watch, device.own, sizes))
    patched.setattr(Stopwatch, "measure_launch", lambda watch: setattr(watch, "launch_s", launch_s))
    return file, Calibration(file, folder / "small.yaml", sizes=sizes).run()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    with pytest.MonkeyPatch.context() as patched:
        return calibrated(tmp_path_factory.mktemp("gpu"), patched, 1e-9)


def test_plans_for_such_gpus_read_its_tables_and_keep_the_shares_of_the_rest(measured: tuple[Path, Profile]):
    file, profile = measured
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


def test_results_that_are_bound_by_launches_are_in_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = replace(SIZES, lengths=SIZES.lengths[:1])
    file, profile = calibrated(tmp_path, monkeypatch, 3600.0, sizes)
    assert profile.matmuls == profile.attention == ()
    assert profile.refused and profile.model == profile.links == {}
    model, _, _ = read_profile(file, named_cluster("h100:1x8"))
    assert replace(model, measured=HOPPER.measured) == HOPPER
