"""What failures, stragglers and power caps cost, against what was published of large runs."""

from dataclasses import replace

import pytest

from jaxpar.hardware.catalogue import GPUS, gpu_named
from jaxpar.hardware.power import capped, power_of, speed_at
from jaxpar.planner.failures import HOUR, STRAGGLERS, reliability, spare_hosts, straggling


def test_llama_3_405b_is_interrupted_every_three_hours_and_trains_more_than_90_percent():
    """arXiv:2407.21783: a failure every 3.1 hours on 16,384 H100, and more than 90% effective training time."""
    run = reliability(16_384, 405e9)
    assert run.between / HOUR == pytest.approx(3.1, rel=0.01)
    assert 0.90 < run.share < 0.97


def test_the_checkpoint_interval_is_the_one_that_loses_least():
    run = reliability(16_384, 405e9)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert replace(run, every=factor * run.every).overhead > run.overhead


def test_more_gpus_fail_more_often_and_start_later():
    few, many = reliability(1024, 405e9), reliability(100_000, 405e9)
    assert many.between < few.between / 90 and many.start > few.start and many.share < few.share
    assert reliability(1024, 405e9, gpu_hours=1e9).share > 0.99


def test_training_stalls_for_the_copy_alone_and_no_save_begins_before_the_one_before_has_ended():
    run = reliability(16_384, 405e9)
    assert 0 < run.stall < run.save < run.every
    frail = reliability(1024, 405e9, gpu_hours=1.0)
    assert frail.every == frail.save, "saves follow one another"


def test_a_failure_while_a_checkpoint_is_written_goes_back_to_the_one_before():
    run = reliability(1024, 405e9)
    times = [run.every * (index + 0.5) / 10_000 for index in range(10_000)]
    lost = sum(time if time > run.save else time + run.every for time in times) / len(times)
    assert run.overhead == pytest.approx(run.stall / run.every + (lost + run.start) / run.between, rel=1e-4)


def test_a_restart_reads_the_checkpoint_from_storage_twice():
    small, large = reliability(1024, 1e9), reliability(1024, 405e9)
    assert large.start - small.start == pytest.approx(2 * (large.save - small.save))


def test_spare_hosts_are_enough_for_the_failures_of_a_repair():
    """16,384 GPUs lose 6.05 hosts a day: 12 are enough in 99% of the time (a table of the Poisson distribution)."""
    assert spare_hosts(16_384) == 12
    assert spare_hosts(8) == 0 and spare_hosts(8, gpu_hours=0.001) == 8, "no more than there are GPUs"


def test_stragglers_take_what_they_took_at_bytedance_less_what_steps_have():
    """arXiv:2505.05713, section 3.2: a job that is S times slower wastes 1 - 1 / S of its time; 10.4% in all."""
    assert 1 - 1 / straggling(STRAGGLERS, 0.0) == pytest.approx(0.104)
    slower = straggling(STRAGGLERS, 0.04)
    assert (slower - 1 + 0.04) / slower == pytest.approx(0.104)
    assert straggling(STRAGGLERS, 0.2) == 1 and straggling(0.0, 0.0) == 1


def test_a_power_cap_costs_less_speed_than_power():
    assert speed_at(700, 700) == speed_at(800, 700) == 1
    speeds = [speed_at(watts, 700) for watts in (300, 400, 500, 600, 700)]
    assert speeds == sorted(speeds)
    assert all(speed > watts / 700 for speed, watts in zip(speeds, (300, 400, 500, 600), strict=False))
    gpu = gpu_named("h100")
    slow = capped(gpu, 500)
    assert slow.training_peak < gpu.training_peak and slow.hbm_bandwidth == gpu.hbm_bandwidth
    assert power_of(gpu) == 700


def test_every_gpu_of_the_catalogue_has_a_power():
    assert all((power_of(gpu) or 0) > 50 for gpu in GPUS)
