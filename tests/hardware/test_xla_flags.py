"""XLA's flags: known to the installed XLA, and never against what the user set."""

from __future__ import annotations

import os

from jaxpar.hardware.catalogue import GPUS
from jaxpar.hardware.xla_flags import check_flags, merged, options, xla_flags
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
