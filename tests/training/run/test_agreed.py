"""Processes of a job whose hosts have other records of kernels: they run one plan, or refuse with a sentence."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jaxpar.config import Config, UserError
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.schema.training import LaterSources
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.training.run import agreed
from pallas_kernels.attention import comparison
from tests.sentences import refused_by_command
from tests.small_run import small
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, folder_of, losses, run_config

HOPPER = DescribedGPU.from_gpu(gpu_named("h100"))
HOSTS = ("anna", "berta", "carla")


@cache
def packed() -> tuple[Config, Plan]:
    """A run that takes cuDNN's packed layout where there are no records, once that was compared with plain XLA."""
    config = small(model={"head_dim": 64}, precision={"compute": "bfloat16"}, parallel={"fsdp": 1})
    config = resolve_config(replace(config, data=replace(config.data, packed=True)), 1)
    return config, make_plan(config, HOPPER)


type Answers = Callable[..., list[Plan | str]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """`answers(*others)`: the plan that `compared_plan` returns in each process of a job, or the sentence that it
    raises. Process 0 has `packed`; each of `others` has another plan or configuration, or raises an error.

    A process is a thread here, and a collective a barrier, at which a process that waits alone fails.
    """
    this, (config, plan) = threading.local(), packed()
    monkeypatch.setattr(comparison, "_differences", {})
    monkeypatch.setattr(comparison, "compare", lambda request: None)
    monkeypatch.setattr(agreed.socket, "gethostname", lambda: HOSTS[this.process])

    def of_all(*others: Plan | Config | UserError, first: Config = config) -> list[Plan | str]:
        count = 1 + len(others)
        barrier, said = threading.Barrier(count), [""] * count

        def judged(text: str, judge: Callable[[list[str]], str | None]) -> str | None:
            said[this.process] = text
            barrier.wait(20)
            verdict = judge(list(said))
            barrier.wait(20)
            return verdict

        def process(number: int) -> Plan | str:
            this.process = number
            own = (first, *others)[number]

            def make() -> Plan:
                if isinstance(own, UserError):
                    raise own
                return own if isinstance(own, Plan) else plan

            try:
                return agreed.compared_plan(make, own if isinstance(own, Config) else first, [HOPPER])
            except UserError as error:
                return str(error)

        monkeypatch.setattr(agreed, "judged", judged)
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(process, range(count)))

    return of_all


def test_a_bring_up_on_one_host_alone_is_a_sentence_on_all_and_no_wait(answers: Answers):
    _, plan = packed()
    assert plan.attention["all"].name == "cudnn", "without a record: the host that compares"
    found = answers(replace(plan, attention={"all": Choice("mosaic", "recorded")}), plan)
    assert len({*map(str, found)}) == 1
    sentence = str(found[0])
    which = 'plan.attention.all: "cudnn" on process 0 (anna) and process 2 (carla), "mosaic" on process 1 (berta)'
    for part in (which, "verified.json", "--bring-up on all hosts", "or set attention.backend"):
        assert part in sentence
    assert sentence.isprintable() and "reason" not in sentence


def test_other_reasons_for_the_same_choices_are_one_plan(answers: Answers):
    _, plan = packed()
    attention = {"all": Choice(plan.attention["all"].name, "faster here")}
    other = replace(plan, attention=attention, loss_tiles=Choice(plan.loss_tiles.name, "so"))
    assert answers(other) == [plan, other]


def test_what_differs_without_a_kernel_does_not_advise_a_bring_up(answers: Answers):
    [one, other] = answers(replace(packed()[1], mlp_tiles=Choice(4)))
    assert one == other
    assert "plan.mlp_tiles: 1 on process 0 (anna), 4 on process 1 (berta)" in str(one) and "bring-up" not in str(one)


def test_what_multiplies_fp8_is_no_part_of_the_plan_and_is_compared_too(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
):
    names = iter(("cudnn", "mosaic"))
    monkeypatch.setattr(agreed, "tiled_choice", lambda *_: Choice(next(names), "recorded"))
    sentence = str(answers(packed()[1])[0])
    assert "plan.matmul.dense: " in sentence and "or set precision.matmul_options.backend" in sentence


def test_a_plan_that_one_host_alone_refuses_ends_all(answers: Answers):
    why = "plan.attention: 'mosaic' has no record"
    assert answers(UserError(why)) == [f"process 1 on berta has no plan: {why}", why]


def test_another_configuration_on_one_host_is_named(answers: Answers):
    """A rate is an argument of the step and in no plan or program: half of the devices would take another one."""
    config, plan = packed()
    found = answers(replace(config, optimizer=replace(config.optimizer, learning_rate=7.0)))
    assert len({*map(str, found)}) == 1
    assert "optimizer.learning_rate: 0.01 on process 0 (anna), 7.0 on process 1 (berta)" in str(found[0])
    assert str(found[0]).endswith("start all with the same configuration")
    assert answers(replace(config, distributed=replace(config.distributed, process_id=1))) == [plan, plan]


def test_a_host_may_have_its_files_elsewhere(answers: Answers):
    def host(disk: str, weight: float = 0.5, start: str | None = None, cache: str | None = None) -> Config:
        config, _ = packed()
        sources = {f"{disk}/reason": weight, f"{disk}/b": 0.5}
        later = (LaterSources(2, {f"{disk}/b": 1.0}),)
        places = {"sources": sources, "later_sources": later, "validation": {"name": f"{disk}/h"}, "path": disk}
        return replace(
            config,
            data=replace(config.data, **places, routing=disk),
            run=replace(config.run, dir=disk, init_from=start, compile_cache=cache),
            memory=replace(config.memory, offload_dir=cache),
        )

    plan = packed()[1]
    found = lambda other: answers(other, first=host("/a"))
    assert found(host("/b", cache="/c")) == [plan, plan]
    assert "data.sources: [0.5, 0.5] on process 0 (anna), [0.25, 0.5] on process 1" in str(found(host("/a", 0.25))[0])
    remote = [f"hf://org/{name}" for name in "ab"]
    first, second = (host("/a", start=url) for url in remote)
    assert remote[1] in str(answers(second, first=first)[0])
    assert 'run.init_from: null on process 0 (anna), "a path" on process 1' in str(found(host("/a", start="/m"))[0])
    named = replace(packed()[0], data=replace(packed()[0].data, sources={"reason": 0.5, "b": 0.5}))
    assert answers(named, first=named) == [plan, plan], "a source may have any name"


@pytest.mark.long
def test_two_processes_with_other_plans_end_with_the_sentence(tmp_path: Path):
    """Real ones: process 1 has a record of a kernel, and process 0 has none."""
    config = run_config(tmp_path, 2, parallel=MESH)
    done = outputs(start_job(config, tmp_path / "job.yaml", 2, program="tests.training.damage.recorded_elsewhere"))
    for code, out, errors in done:
        said = ("plan.linear_attention.mixer", '"mosaic" on process 1', "attention.linear_backend")
        printed = "".join(line for line in out.splitlines(keepends=True) if not line.startswith("[Gloo]"))
        refused_by_command(code, printed, errors.splitlines()[-1], *said)
    assert not folder_of(config).exists()


@pytest.mark.long
@pytest.mark.parametrize("other", ["a step", "an evaluation", "generation"])
def test_two_processes_with_other_programs_end_before_the_first_call(tmp_path: Path, other: str):
    """One host has other code, which no plan tells, and a flag that only names a folder for its files."""
    evaluation = {"every": 1, "batches": 1, "sample_tokens": 8}
    config = run_config(tmp_path, 1, parallel=MESH, evaluation=evaluation)
    program, environment = "tests.training.damage.other_program", {"OTHER": other}
    job = start_job(config, tmp_path / "job.yaml", 2, program=program, environment=environment)
    first, second = outputs(job)
    host = socket.gethostname()
    sentence = f"process 1 on {host} has another program of {other} than process 0 on {host} (program: "
    said = second[2].splitlines()[-1]
    assert second[0] == 2 and said.startswith(f"jaxpar: {sentence}")
    assert "XLA_FLAGS: " not in said and "JAX_DUMP_IR_TO" in said
    assert first[0] == 1 and f"process 1 on {host} stopped" in first[2] and sentence in first[2]
    assert other == "generation" or not losses(config)
