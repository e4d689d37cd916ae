"""A plan that is given to a run decides: it is run as it is, to the same bits, or refused in one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import Config, UserError
from jaxpar.config.mappings.overlap import OverlapConfig
from jaxpar.config.plan import AxisSizes, Choice, LayerRun, Plan
from jaxpar.config.schema.model import Pattern
from jaxpar.distributed.devices import devices_per_node
from jaxpar.layout.given_plan import check_plan, check_same_layout
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.plan_file import PlanFile, read, write
from jaxpar.train import main as train
from jaxpar.training.run.trainer import Trainer
from tests.sentences import refused, refused_by_command
from tests.small_run import with_overlap
from tests.training.runs import Recorder, losses, run_config

FSDP = {"fsdp": 4, "tensor": 2}


def planned(config: Config, usable: int | None = None) -> tuple[Config, Plan]:
    devices = jax.devices()
    config = resolve_config(config, len(devices))
    return config, make_plan(config, devices[0], devices_per_node(devices), usable=usable)


def planned_on_the_smallest(config: Config) -> tuple[Config, Plan]:
    """On a machine with as little memory as makes `memory.remat: auto` keep little."""
    usable, found = 2**20, planned(config)
    try:
        while True:
            found, usable = planned(config, usable), int(0.95 * usable)
    except UserError:
        return found


def kept(plan: Plan) -> int:
    """Activations that all layers of a chunk keep on the device."""
    return sum(run.layers * list(run.activations.values()).count("save") for run in plan.runs)


@pytest.mark.long
def test_a_plan_of_another_machine_gives_the_same_bits(tmp_path: Path):
    config, plan = planned_on_the_smallest(run_config(tmp_path, 3, parallel=FSDP, memory={"remat": "auto"}))
    assert kept(plan) < kept(planned(config)[1]), "this machine would keep more"
    file = tmp_path / "plan.json"
    write(file, PlanFile(config, plan))
    trainer = Trainer(config, plan=plan)
    there = {step: float(trainer.step().loss) for step in (1, 2, 3)}
    assert train(["--plan", str(file), "--set", "evaluation.batches=0"]) == 0
    assert losses(config) == there
    ran = read(tmp_path / config.run.name / "plan.json")
    assert ran.plan == plan
    assert ran.config == config


@pytest.mark.long
def test_a_run_that_goes_on_under_another_plan_states_it(tmp_path: Path):
    config, plan = planned_on_the_smallest(run_config(tmp_path, 1, parallel=FSDP, memory={"remat": "auto"}))
    Trainer(config, plan=plan).fit([])
    for steps, given, expected in ((2, plan, []), (3, None, ["plan-until-2.json"]), (4, None, [])):
        recorded = Recorder()
        longer = replace(config, run=replace(config.run, steps=steps))
        Trainer(longer, plan=given).fit([recorded])
        reported = [
            text for text in recorded.messages if text.startswith("The plan differs from that of the last start")
        ]
        assert [name for text in reported for name in ("plan-until-2.json",) if name in text] == expected
    assert read(tmp_path / "run" / "plan-until-2.json").plan == plan


CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "devices": ({"axes": AxisSizes(fsdp=2)}, ("plan.axes", "(fsdp 2) is for 2 devices", "there are 8")),
    "mesh": ({"axes": AxisSizes(fsdp=8)}, ("plan.axes", "the mesh of the configuration")),
    "ZeRO": ({"zero": 1}, ("plan.zero: 1", "parallel.zero is 3")),
    "rows": ({"microbatch_rows": 4}, ("plan.microbatch_rows: 16", "data.batch_size", "is 8")),
    "layers": ({"stage_layers": (2,)}, ("plan.stage_layers: 2", "model.layers is 3")),
    "chunks": ({"stage_layers": (1, 2)}, ("plan.stage_layers: 2", "chunks of plan.schedule is 1")),
    "activations": ({"runs": (LayerRun(3, {"query": "save"}),)}, ("plan.runs", "the activations of the model")),
    "tiles": ({"mlp_tiles": Choice(65)}, ("plan.mlp_tiles: 65", "64 tokens")),
    "attention": (
        {"attention": {"all": Choice("cudnn", "")}},
        ("plan.attention.all is 'cudnn'", "it needs an NVIDIA GPU"),
    ),
    "no attention": (
        {"attention": {"all": Choice("cudn", "")}},
        ("plan.attention.all is 'cudn'", "did you mean cudnn"),
    ),
    "strategy": ({"context_strategy": Choice("rin", "")}, ("plan.context_strategy is 'rin'", "did you mean ring")),
    "offload": ({"optimizer_offload": "host"}, ("plan.optimizer_offload: 'host'", "optimizer_offload is 'none'")),
}


@pytest.mark.parametrize("devices", [8, 256])
def test_a_plan_for_other_gpus_is_refused_with_where_it_is_for_first(tmp_path, capsys, devices: int):
    config, plan = planned(run_config(tmp_path / "runs", 1, parallel=FSDP))
    plan = replace(plan, axes=AxisSizes(fsdp=devices), attention={"all": Choice("cudnn", "")})
    write(tmp_path / "plan.json", PlanFile(config, plan, cluster=f"h100:{devices // 8}x8"))
    status = train(["--plan", str(tmp_path / "plan.json")])
    out, errors = capsys.readouterr()
    refused_by_command(status, out, errors, f"{devices} x H100-SXM-80GB; here is 1 CPU")
    assert errors.startswith("jaxpar: this plan is for")


@pytest.mark.parametrize(("changed", "parts"), CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_that_cannot_run_here_is_one_sentence_before_anything_is_allocated(tmp_path, capsys, changed, parts):
    config, plan = planned(run_config(tmp_path / "runs", 1, parallel=FSDP))
    write(tmp_path / "plan.json", PlanFile(config, replace(plan, **changed)))
    before = len(jax.live_arrays())
    refused_by_command(train(["--plan", str(tmp_path / "plan.json")]), *capsys.readouterr(), *parts)
    assert len(jax.live_arrays()) == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("parallel", "memory", "why"),
    [
        ({"replica": 2, "fsdp": 4, "zero": 0}, {}, "parallel.zero: 0 shards nothing"),
        ({"fsdp": 8}, {}, "plan.axes.replica is 1"),
        ({"replica": 2, "fsdp": 4}, {"optimizer_offload": "host", "weights_offload": "host"}, "weights_offload: host"),
    ],
)
def test_state_that_replicas_cannot_share_is_refused_where_the_configuration_leaves_it_to_the_plan(
    parallel: dict[str, Any], memory: dict[str, Any], why: str
):
    config, plan = planned(run_config(Path("runs"), 1, parallel=parallel, memory=memory))
    assert config.parallel.overlap.shard_state_over_replicas == "auto"
    check_plan(plan, config, jax.devices()[0])
    with refused("plan.shard_state_over_replicas: true", why, "expected false"):
        check_plan(replace(plan, shard_state_over_replicas=Choice(True)), config, jax.devices()[0])


@pytest.mark.parametrize(
    ("key", "named", "other", "shown"),
    [
        ("embedding_messages", "table", "rows", ("'rows'", "'table'")),
        ("shard_state_over_replicas", False, True, ("true", "false")),
        ("shard_state_over_replicas", True, False, ("false", "true")),
        ("layer_unroll", 2, 1, ("1", "2")),
        ("weight_prefetch", "layer", "parts", ("'parts'", "'layer'")),
    ],
)
def test_what_the_configuration_names_is_not_left_to_the_plan(key: str, named: Any, other: Any, shown: tuple[str, str]):
    layout = {"replica": 2, "fsdp": 4}
    config, plan = planned(run_config(Path("runs"), 1, parallel=with_overlap(layout, **{key: named})))
    changed = replace(plan, **{key: Choice(other)})
    with refused(f"plan.{key}: {shown[0]}", f"parallel.overlap.{key} is {shown[1]}"):
        check_plan(changed, config, jax.devices()[0])
    check_plan(changed, replace(config, parallel=replace(config.parallel, overlap=OverlapConfig())), jax.devices()[0])


@pytest.mark.parametrize("role", ["compute", "storage", "gradient", "moments"])
def test_each_dtype_is_that_of_the_configuration(role: str):
    config, plan = planned(run_config(Path("runs"), 1, parallel=FSDP))
    with refused(f"plan.dtypes.{role}: 'float16'", "precision", "is 'float32'", "--config"):
        check_plan(replace(plan, dtypes=replace(plan.dtypes, **{role: "float16"})), config, jax.devices()[0])


def test_a_plan_is_for_the_factors_that_it_was_made_with():
    config, plan = planned(run_config(Path("runs"), 1, parallel={"pipe": 2, "fsdp": 4, "microbatches": 2}))
    tuned = replace(config, lora=replace(config.lora, rank=4))
    with refused("--set lora.rank", "-> 4", "made for another value"):
        check_same_layout(config, tuned)
    with refused("plan.schedule: zb-h1", "splits the backward", "lora.rank: 4"):
        check_plan(replace(plan, schedule="zb-h1"), tuned, jax.devices()[0])


def test_kinds_of_layers_have_a_backend_each():
    model = {"kinds": {"local": {"window": 8}, "global": {}}, "pattern": Pattern(("local", "global", "global"))}
    config, plan = planned(run_config(Path("runs"), 1, parallel=FSDP, model=model))
    check_plan(plan, config, jax.devices()[0])
    one = {"local": Choice("cudnn", "")}
    with refused("plan.attention.local is 'cudnn'", "it needs an NVIDIA GPU"):
        check_plan(replace(plan, attention=plan.attention | one), config, jax.devices()[0])
    with refused("plan.attention", "kinds local;", "local, global"):
        check_plan(replace(plan, attention=one), config, jax.devices()[0])


@pytest.mark.parametrize(
    "override",
    [
        "model.layers=4", "parallel.fsdp=8", "parallel.auto=true", "precision.compute=bfloat16",
        "attention.backend=xla", "memory.remat=full", "memory.loss_tiles=2", "data.batch_size=16",
        "data.sequence_length=64", "data.packed=false",
    ],
)  # fmt: skip
def test_what_a_plan_is_made_from_cannot_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str):
    config, plan = planned(run_config(tmp_path / "runs", 1, parallel=FSDP))
    write(tmp_path / "plan.json", PlanFile(config, plan))
    status = train(["--plan", str(tmp_path / "plan.json"), "--set", override])
    key, _, value = override.partition("=")
    refused_by_command(
        status, *capsys.readouterr(), f"--set {key}", f"-> {value}", "made for another value", "--config"
    )


@pytest.mark.long
def test_what_a_plan_is_not_made_from_can_be_set(tmp_path: Path):
    config, plan = planned(run_config(tmp_path, 1, parallel=FSDP))
    file = tmp_path / "plan.json"
    write(file, PlanFile(config, plan))
    overrides = ["run.name=other", "run.seed=7", "optimizer.learning_rate=0.02", "memory.host_limit=1000000000",
                 "data.batch_size=8", "checkpoint.every=0"]  # fmt: skip
    assert train(["--plan", str(file), *(word for one in overrides for word in ("--set", one))]) == 0
    ran = read(tmp_path / "other" / "plan.json")
    assert ran.plan == plan
    assert (ran.config.run.seed, ran.config.optimizer.learning_rate) == (7, 0.02)
