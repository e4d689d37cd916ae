"""launch/local.py starts the processes of a job, prints what they say, and ends all when one fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.loading import ROOT, load
from tests.patience import seconds
from tests.sentences import refused

local = load("local")


def start(code: str, *options: str, processes: int = 2) -> subprocess.Popen[str]:
    """The launcher over processes that run `code`, in which R is the number of the process."""
    setup = "import os, signal, sys, time; R = int(os.environ['JAX_PROCESS_ID']); "
    launcher = [sys.executable, str(ROOT / "launch/local.py"), "--processes", str(processes), *options, "--"]
    return subprocess.Popen(
        [*launcher, sys.executable, "-c", setup + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(code: str, *options: str, processes: int = 2) -> tuple[int, list[str], list[str]]:
    """(exit code, lines of stdout in order, lines of stderr in order)."""
    with start(code, *options, processes=processes) as job:
        out, errors = job.communicate(timeout=60)
    return job.returncode, sorted(out.splitlines()), sorted(errors.splitlines())


def test_lines_carry_the_number_of_their_process():
    code, out, errors = run("print('a'); print('b', R); print('c', file=sys.stderr); sys.stdout.write('no end')")
    assert (code, errors) == (0, ["[0] c", "[1] c"])
    assert out == ["[0] a", "[0] b 0", "[0] no end", "[1] a", "[1] b 1", "[1] no end"]


def test_every_process_knows_who_it_is_and_where_process_0_will_be():
    names = "JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID JAX_PLATFORMS XLA_FLAGS"
    code, out, _ = run(f"print(*[os.environ[n] for n in {names.split()}])", "--devices-per-process", "3", processes=3)
    assert code == 0
    fields = [line.split() for line in out]
    assert len({found[1] for found in fields}) == 1 and fields[0][1].startswith("127.0.0.1:")
    assert [(found[0], found[2], found[3], found[4]) for found in fields] == [
        (f"[{number}]", "3", str(number), "cpu") for number in range(3)
    ]
    assert all(found[-1] == "--xla_force_host_platform_device_count=3" for found in fields)
    assert all(line.count("device_count") == 1 for line in out)


def test_when_one_fails_the_others_are_ended_and_its_code_is_the_jobs():
    code, _, errors = run("sys.exit(7) if R == 1 else time.sleep(60)", "--grace", "0.2")
    assert code == 7
    assert errors == ["launch/local.py: process 1 ended with code 7; ending the others"]


def test_the_others_may_print_something_before_they_are_ended():
    code, out, _ = run("sys.exit(1) if R == 1 else (time.sleep(0.5), print('process 1 is gone'), sys.exit(1))")
    assert (code, out) == (1, ["[0] process 1 is gone"])


def test_one_that_was_killed_is_reported_by_its_signal():
    code, _, errors = run("os.kill(os.getpid(), 9) if R == 0 else time.sleep(60)", "--grace", "0.1")
    assert code == 128 + 9
    assert errors == ["launch/local.py: process 0 was ended by SIGKILL; ending the others"]


def test_one_that_was_killed_is_reported_also_where_another_has_failed_for_it_in_the_same_moment(tmp_path: Path):
    gone = tmp_path / "gone"
    wait = f"\nwhile R == 1 or not os.path.exists({str(gone)!r}):\n  time.sleep(0.01)\nsys.exit(1)"
    with start(f"print(os.getpid(), flush=True){wait}") as job:
        assert job.stdout is not None
        numbers = dict(job.stdout.readline().split() for _ in range(2))
        job.send_signal(signal.SIGSTOP)
        os.kill(int(numbers["[1]"]), signal.SIGKILL)
        gone.touch()
        while Path(f"/proc/{numbers['[0]']}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        job.send_signal(signal.SIGCONT)
        _, errors = job.communicate(timeout=seconds(30))
    assert job.returncode == 128 + 9
    assert errors == "launch/local.py: process 1 was ended by SIGKILL\n"


def test_one_that_ignores_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch):
    code, _, _ = run("sys.exit(3) if R == 1 else os.kill(os.getpid(), signal.SIGSTOP)", "--grace", "0.1")
    assert code == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_go_to_all_processes(number: signal.Signals):
    heard = f"signal.signal({int(number)}, lambda *_: (print('heard'), sys.exit(0))); print('ready'); time.sleep(60)"
    with start(heard) as job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        job.send_signal(number)
        out, _ = job.communicate(timeout=seconds(30))
    assert (job.returncode, sorted(out.splitlines())) == (0, ["[0] heard", "[1] heard"])


def test_a_second_ctrl_c_kills_all_processes():
    with start("signal.signal(2, lambda *_: print('heard')); print('ready'); [time.sleep(60) for _ in 'ab']") as job:
        assert job.stdout is not None
        for expected in ("ready", "heard"):
            assert sorted(job.stdout.readline() for _ in range(2)) == [f"[0] {expected}\n", f"[1] {expected}\n"]
            job.send_signal(signal.SIGINT)
        job.communicate(timeout=seconds(30))
    assert job.returncode == 128 + signal.SIGINT


def test_processes_end_with_a_launcher_that_is_killed(tmp_path: Path):
    heard = (
        "signal.signal(15, lambda *_: (open(os.environ['JAXPAR_TEST'] + '/' + str(R), 'w').close(), os._exit(0))); "
        "print('ready'); time.sleep(60)"
    )
    os.environ["JAXPAR_TEST"] = str(tmp_path)
    try:
        job = start(heard)
    finally:
        del os.environ["JAXPAR_TEST"]
    with job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        job.kill()
    deadline = time.monotonic() + seconds(20)
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_gpus_are_shared_out():
    made = local.process_environments({"A": "1"}, 2, None, ["0", "1", "2", "3"])
    assert [own["CUDA_VISIBLE_DEVICES"] for own in made] == ["0,1", "2,3"]
    assert all("JAX_PLATFORMS" not in own and own["A"] == "1" for own in made)
    made = local.process_environments({}, 2, 1, ["4", "5", "6"])
    assert [own["CUDA_VISIBLE_DEVICES"] for own in made] == ["4", "5"]


@pytest.mark.parametrize(("processes", "devices"), [(3, None), (2, 3), (5, None)])
def test_gpus_that_do_not_suffice_are_refused(processes: int, devices: int | None):
    with refused(f"{processes} processes", "GPUs each", "there are 4", error=ValueError):
        local.process_environments({}, processes, devices, ["0", "1", "2", "3"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--processes", "0", "--", "true"], "expected at least 1"),
        (["--processes", "1", "--", "no-such-program"], "there is no program 'no-such-program'"),
        (["--processes", "2"], "the following arguments are required"),
    ],
)
def test_wrong_arguments_are_reported(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        local.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
