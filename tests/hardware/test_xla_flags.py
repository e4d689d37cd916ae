"""XLA's flags: known to the installed XLA, and never against what the user set."""

import os

import pytest

from jaxpar.hardware.catalogue import GPUS
from jaxpar.hardware.xla_flags import (
    OVERLAP_LIMIT,
    check_flags,
    collectives_at_a_time,
    merged,
    options,
    run_flags,
    xla_flags,
)
from tests.sentences import refused


def test_the_installed_xla_knows_every_flag():
    for flags in {xla_flags(gpu) for gpu in GPUS} | {xla_flags()}:
        check_flags(" ".join(flags))


def test_an_unknown_flag_is_a_sentence_and_not_the_end_of_the_process():
    with refused("XLA_FLAGS", "--xla_gpu_no_such_thing=1"):
        check_flags("--xla_gpu_no_such_thing=1 --xla_gpu_enable_latency_hiding_scheduler=true")


def test_a_value_that_a_flag_does_not_take_is_named():
    with refused("perhaps", "xla_gpu_enable_triton_gemm"):
        check_flags("--xla_gpu_enable_triton_gemm=perhaps")


def test_options_show_which_flags_are_in_force():
    none, set_off, *others = (
        check_flags(flags)
        for flags in ("", "--xla_gpu_enable_triton_gemm=false", " ".join(xla_flags()), " ".join(xla_flags()[::-1]))
    )
    assert len({none, set_off, *others}) == 3 and others[0] == others[1]
    assert options() == check_flags(os.environ["XLA_FLAGS"])


def test_what_the_user_set_wins():
    own = ("--xla_gpu_a=true", "--xla_gpu_b=1")
    assert merged(own, "--xla_gpu_b=2 --xla_dump_to=/x") == "--xla_gpu_a=true --xla_gpu_b=2 --xla_dump_to=/x"
    assert merged(own, "") == "--xla_gpu_a=true --xla_gpu_b=1"


def test_flags_of_a_run_are_ours_and_those_of_the_environment_about_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_b=2 --xla_gpu_enable_triton_gemm=true --xla_gpu_c=3")
    kept = [flag for flag in xla_flags() if "triton_gemm" not in flag]
    assert run_flags() == (*kept, "--xla_gpu_enable_triton_gemm=true", "--xla_gpu_c=3")
    monkeypatch.delenv("XLA_FLAGS")
    assert run_flags() == xla_flags()


@pytest.mark.parametrize(("values", "limit"), [((), 1), (("4",), 4), (("4", "1"), 1)])
def test_collectives_at_a_time_are_one_unless_the_last_flag_allows_more(values: tuple[str, ...], limit: int):
    flags = ("--xla_gpu_enable_latency_hiding_scheduler=true", *(f"--{OVERLAP_LIMIT}={value}" for value in values))
    assert collectives_at_a_time(flags) == limit


def test_no_gpu_has_several_collectives_at_a_time_by_default():
    assert {collectives_at_a_time(xla_flags(gpu)) for gpu in (None, *GPUS)} == {1}
