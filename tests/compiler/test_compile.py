"""The step compiled in a child process: what comes back, what is kept, and what is reported when it fails."""

import re
from pathlib import Path

import pytest

from jaxpar.compiler import compile as compiling
from jaxpar.compiler import wheels
from jaxpar.compiler.compilation import Compilation
from jaxpar.compiler.compile import compile_step, plan_for
from jaxpar.compiler.program.hlo.records import leaves
from jaxpar.config import UserError, load_config, with_overrides
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.xla_flags import xla_flags
from tests.compiler.inspected import CACHE, CLUSTER, hsdp, inspected, wide
from tests.compiler.program.programs import strictly
from tests.sentences import refused

EIGHT = {"parallel": {"fsdp": 8}}


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    """A step for two hosts of four H100s."""
    return hsdp()[0].compilation


@pytest.mark.long
def test_inputs_are_named_by_the_number_of_their_parameter(compilation: Compilation):
    """XLA's program itself carries JAX's names of the arguments."""
    parameters = strictly(compilation.program).entry_computation.parameters
    spelled = [re.sub(r"\\?['\"]", "", op.op_name).replace("[", "/").replace("]", "") for op in parameters]
    names = [re.sub(r"^state/", "", name.replace(".", "/")) for name in spelled]
    assert names == list(compilation.inputs)
    assert "master/layers/all/mlp/gate" in compilation.inputs
    assert "optimizer/nu/layers/all/mlp/gate" in compilation.inputs and "batch/tokens" in compilation.inputs
    assert "batch/examples" not in compilation.inputs  # only dropout reads it


@pytest.mark.long
def test_memory_is_the_memory_of_the_program(compilation: Compilation):
    memory = compilation.memory
    parameters = strictly(compilation.program).entry_computation.parameters
    arguments = sum(leaf.bytes for op in parameters for leaf in leaves(op.shape))
    assert memory.argument == arguments and memory.alias <= memory.output <= memory.peak <= memory.total_allocation
    assert memory.temp > 0
    assert "BufferAssignment" in compilation.buffer_assignment and "HloLiveRange" in compilation.live_ranges


@pytest.mark.long
def test_the_plan_is_the_one_that_a_run_has(compilation: Compilation):
    config, plan = plan_for(load_config(CACHE / "hsdp.yaml"), parse_cluster(CLUSTER))
    assert compilation.plan == plan
    assert (plan.axes.replica, plan.axes.fsdp, config.model.vocab) == (2, 4, 512)
    assert (compilation.gpu, compilation.hosts, compilation.gpus_per_host) == ("h100", 2, 4)
    assert compilation.xla_flags == xla_flags() and compilation.notes == ()


@pytest.mark.long
def test_what_was_compiled_is_not_compiled_again(compilation: Compilation):
    config, cluster = load_config(CACHE / "hsdp.yaml"), parse_cluster(CLUSTER)
    no_time = 0.01
    assert compile_step(config, cluster, cache=CACHE, timeout_s=no_time) == compilation
    # Where a run writes and how often it saves does not enter the program; its optimizer and the cluster do.
    same = with_overrides(config, ["run.name=other", "checkpoint.every=7"])
    assert compile_step(same, cluster, cache=CACHE, timeout_s=no_time) == compilation
    other = with_overrides(config, ["optimizer.options.beta1=0.8"])
    for changed in ((other, cluster), (config, parse_cluster("h800:2x4"))):
        with refused("compiling for ", "longer than 0.01 s"):
            compile_step(*changed, cache=CACHE, timeout_s=no_time)


@pytest.mark.long
def test_a_damaged_file_in_the_cache_counts_as_none(compilation: Compilation, tmp_path: Path):
    for kept in CACHE.glob("*.json.gz"):
        (tmp_path / kept.name).write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(UserError, match="took longer"):
        compile_step(load_config(CACHE / "hsdp.yaml"), parse_cluster(CLUSTER), cache=tmp_path, timeout_s=0.01)


@pytest.mark.long
def test_two_hosts_of_h800_and_what_stands_in_for_cudnn(tmp_path: Path):
    config = wide(model={"head_dim": 64}, parallel={"fsdp": 16}, attention={"backend": "auto"}, data={"packed": False})
    made = compile_step(config, parse_cluster("h800:2x8"), cache=tmp_path)
    assert (made.gpu, made.plan.axes.fsdp) == ("h800", 16)
    assert made.plan.attention["all"].name == "cudnn"
    if wheels.has_cudnn(wheels.cuda_release()):
        assert made.notes == () and "__cudnn$fmha" in made.program
    else:
        assert "mosaic kernel" in made.notes[0] and "__cudnn$fmha" not in made.program and "mosaic_gpu" in made.program
    assert Compilation.from_json(made.to_json()) == made


@pytest.mark.long
def test_a_gpu_that_no_run_was_measured_on_is_compiled_for_and_timed():
    """A card without NVLink."""
    analysis, report = inspected(wide(model={"layers": 2}, parallel={"fsdp": 2}), "l4:1x2")
    assert (analysis.compilation.gpu, report.fits) == ("l4", True)
    assert "__cublas$" in analysis.compilation.program
    assert any("no run on an L4 was at hand" in note for note in report.notes)
    assert report.collectives and all(one.seconds > 0 for one in report.collectives)


def test_a_compile_that_takes_too_long_is_ended_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling.tempfile, "tempdir", str(tmp_path))
    with refused("h100:1x8", "longer than 1 s", "stopped"):
        compile_step(wide(**EIGHT), parse_cluster("h100:1x8"), cache=None, timeout_s=1)
    assert list(tmp_path.iterdir()) == []
    commands = [(process / "cmdline") for process in Path("/proc").glob("[0-9]*")]
    assert not [text for text in map(_read, commands) if str(tmp_path) in text]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it ended meanwhile
        return ""


def test_a_compile_that_dies_states_its_last_lines_and_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "target_config", lambda gpu: "no description of a GPU")
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag")
    monkeypatch.setenv("JAX_PLATFORMS", "nowhere")
    with pytest.raises(UserError) as error:
        compile_step(wide(**EIGHT), parse_cluster("h100:1x8"), cache=None)
    sentence = str(error.value)
    assert sentence.startswith("compiling for h100:1x8 died (exit status 1): ")
    assert "Failed to parse GpuTargetConfigProto" in sentence
    assert "no_such_flag" not in sentence and "nowhere" not in sentence and "\n" not in sentence


def test_a_flag_that_xla_does_not_know_is_reported_before_compiling(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_no_such_thing=1")
    with refused("XLA_FLAGS", "--xla_gpu_no_such_thing=1"):
        compile_step(wide(**EIGHT), parse_cluster("h100:1x8"), cache=None)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({}, "which is not installed: pip install -e '.[compile]' -c constraints.txt"),
        ({"jax-cuda12-plugin": "0.0.1", "jax-cuda12-pjrt": "0.0.1"}, r"there is jax-cuda12-pjrt 0.0.1, .*pip install"),
    ],
)
def test_missing_wheels_get_the_line_that_installs_them(
    installed: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wheels, "_version", installed.get)
    with pytest.raises(UserError, match=expected.replace("[", r"\[")):
        compile_step(wide(**EIGHT), parse_cluster("h100:1x8"), cache=None)


def test_a_cache_that_cannot_be_written_is_reported_before_compiling(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with refused(str(file), "cannot be kept", "File exists"):
        compile_step(wide(**EIGHT), parse_cluster("h100:1x8"), cache=file)
