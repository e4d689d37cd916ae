"""Compile the training step of a configuration for a cluster, in a child process, and cache the result."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jaxpar
from jaxpar.compiler.child import DUMPS
from jaxpar.compiler.compilation import Compilation
from jaxpar.compiler.stand_in import compilable
from jaxpar.compiler.targets import target_config
from jaxpar.compiler.wheels import cuda_release, versions
from jaxpar.config import Config, UserError, config_to_dict
from jaxpar.config.parts import DATA_SOURCES, implementation
from jaxpar.config.plan import Plan
from jaxpar.config.schema import CheckpointConfig, DistributedConfig, EvaluationConfig, RunConfig, WatchConfig
from jaxpar.data import open_data
from jaxpar.hardware.autotuned import COMPLETE, LACKING, check_file, file_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.hardware.xla_flags import check_flags, run_flags
from jaxpar.layout.make_plan import make_plan, resolve_config, with_vocab

DEFAULT_CACHE = Path("~/.cache/jaxpar/compiled").expanduser()


def plan_for(config: Config, cluster: Cluster, device: Any = None, usable: int | None = None) -> tuple[Config, Plan]:
    """`config` with everything filled in, and its layout on `cluster`, as a run there would have them.

    Args:
        config: as for the trainer.
        cluster: where.
        device: stands for its devices; by default the least capable of its GPUs.
        usable: what a program may take of a device, in bytes; by default what the cluster's GPUs leave it.

    Raises:
        UserError: the configuration is wrong, or does not divide over the cluster.
    """
    config = resolve_config(config, cluster.devices)
    config = with_known_vocab(config)
    device = _device(cluster) if device is None else device
    return config, make_plan(config, device, cluster.gpus_per_host, cluster, usable)


def _device(cluster: Cluster) -> DescribedGPU:
    """The least capable GPU of a cluster."""
    return DescribedGPU.from_gpu(min(cluster.gpus, key=lambda gpu: gpu.compute_capability))


def with_known_vocab(config: Config) -> Config:
    """`config` with the vocabulary of its data, where it names none."""
    if config.model.vocab is not None:
        return config
    codec = DATA_SOURCES[config.data.source].codec  # reads no text
    data = implementation(codec)(config.data) if codec else open_data(config.data, vocab=None, seed=config.run.seed)
    return with_vocab(config, data.vocab)


def compile_step(
    config: Config,
    cluster: Cluster,
    *,
    timeout_s: float = 600,
    cache: Path | None = DEFAULT_CACHE,
    usable: int | None = None,
) -> Compilation:
    """The training step of `config` as XLA compiles it for `cluster`. No GPU is needed.

    Args:
        config: as for the trainer; a mesh axis of -1 takes what the cluster has.
        cluster: the target.
        timeout_s: the child process is ended after this long.
        cache: folder of results, keyed by everything that enters a compile; None compiles each time and keeps nothing.
        usable: as in `plan_for`.

    Raises:
        UserError: the configuration does not fit the cluster, the compiler is not installed, it died, or the cache
            cannot be written.
    """
    config, plan = plan_for(config, cluster, usable=usable)
    gpu, flags = cluster.gpu, run_flags(cluster.gpu)
    tiles = file_of(flags)
    timed = None if tiles is None else check_file(tiles, gpu)
    flags = flags if timed is None else (*flags, COMPLETE)
    release = cuda_release()
    compiled, notes = compilable(config, plan, _device(cluster), release)
    request = {
        "target": target_config(gpu),
        "hosts": cluster.hosts,
        "gpus_per_host": cluster.gpus_per_host,
        "config": config_to_dict(_what_matters(config)),
        "plan": asdict(compiled),
        "xla_flags": list(flags),
        "versions": versions(release),
    } | ({} if timed is None else {"tiles": timed})  # fmt: skip
    saved = None if cache is None else cache / f"{_digest(request)}.json.gz"
    if saved is not None:
        try:
            return replace(Compilation.load(saved), cluster=cluster.name, plan=plan, notes=notes)
        except (OSError, EOFError, ValueError, KeyError, TypeError):  # unreadable counts as missing: it is only a cache
            _make_writable(saved.parent)
    check_flags(" ".join(flags))
    facts = {key: request[key] for key in ("hosts", "gpus_per_host", "xla_flags", "versions")} | {
        "cluster": cluster.name, "gpu": gpu.short, "plan": asdict(plan), "notes": notes
    }  # fmt: skip
    compilation = Compilation.from_json(json.dumps(_in_child(request, cluster.name, timeout_s) | facts))
    if saved is not None:
        compilation.save(saved)
    return compilation


def _what_matters(config: Config) -> Config:
    """`config` without the keys that cannot change the program."""
    return replace(
        config,
        run=RunConfig(steps=config.run.steps, seed=config.run.seed),
        evaluation=EvaluationConfig(),
        checkpoint=CheckpointConfig(),
        watch=WatchConfig(),
        distributed=DistributedConfig(),
    )


def _digest(request: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder}: compiled programs cannot be kept there ({error.strerror})") from None


def _in_child(request: dict[str, Any], name: str, timeout_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="jaxpar-compile-") as scratch:
        folder = Path(scratch)
        (folder / "request.json").write_text(json.dumps(request))
        status, output = _run(folder, request["xla_flags"], timeout_s)
        if status is None:
            raise UserError(f"compiling for {name} took longer than {timeout_s:g} s and was stopped")
        answer = folder / "result.json"
        if status != 0 and LACKING in output:
            raise UserError(
                f"XLA_FLAGS: {file_of(request['xla_flags'])} lacks tiles for fusions of this program, which XLA times "
                "on GPUs alone; expected the file that a run of this configuration on such GPUs wrote"
            )
        if status != 0 or not answer.is_file():
            raise UserError(f"compiling for {name} died ({_ending(status)}): {_last_lines(output)}")
        result = json.loads(answer.read_text())
        if "error" in result:
            raise UserError(result["error"])
        return result | {key: _dumped(folder / "xla", ending) for key, ending in DUMPS.items()}


def _run(folder: Path, flags: list[str], timeout_s: float) -> tuple[int | None, str]:
    """Exit status of the child (None when it took too long) and its output."""
    log = folder / "log"
    with log.open("w") as screen:
        child = subprocess.Popen(
            [sys.executable, "-m", "jaxpar.compiler.child", str(folder)],
            env=_environment([*flags, f"--xla_dump_to={folder / 'xla'}", "--xla_dump_hlo_as_text"]),
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # ptxas runs in processes of its own, which must end with it
        )
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return status, log.read_text(errors="replace")


def _environment(flags: list[str]) -> dict[str, str]:
    """The child's environment: ours, without what would change the program or look for a driver."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "TF_"))}
    root = str(Path(str(jaxpar.__file__)).parents[1])
    return ours | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "LLVM_DISABLE_SYMBOLIZATION": "1",  # tracebacks without a driver take most of a small compile
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": " ".join(flags),
        "PYTHONPATH": os.pathsep.join(filter(None, (root, ours.get("PYTHONPATH")))),
    }


def _dumped(folder: Path, ending: str) -> str:
    paths = list(folder.glob(f"*_train.*{ending}"))
    if len(paths) != 1:
        raise RuntimeError(f"XLA dumped {len(paths)} files that end in {ending}, expected one")
    return paths[0].read_text()


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    hint = ", perhaps out of memory" if -status == signal.SIGKILL else ""
    return f"signal {signal.Signals(-status).name}{hint}"


def _last_lines(output: str) -> str:
    """The last informative lines: no frames of a traceback, nothing about the missing driver."""
    noise = ("cudart_stub", "absl::InitializeLog()", "JAX has removed its internal frames", "-----", "Traceback (")
    lines = [line.rstrip() for line in output.splitlines()]
    lines = [line for line in lines if line and line[0] != " " and not any(word in line for word in noise)]
    return " | ".join(lines[-3:])[-600:] or "it printed nothing"
