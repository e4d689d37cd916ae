"""Clusters from text and from files."""

from pathlib import Path

import pytest

from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import Pods, parse_cluster
from jaxpar.hardware.links import HOST_SHARE
from tests.sentences import refused


def write(folder: Path, text: str) -> str:
    file = folder / "c.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("text", ["h800:32x8", " H800 : 32 x 8 ", "H800-SXM-80GB:32x8"])
def test_text_names_a_gpu_hosts_and_gpus_per_host(text: str):
    cluster = parse_cluster(text)
    assert (cluster.name, cluster.gpu.short, cluster.hosts, cluster.gpus_per_host) == ("h800:32x8", "h800", 32, 8)
    assert cluster.devices == 256


def test_bandwidth_is_bytes_per_second_per_gpu_in_one_direction():
    h100, h800 = parse_cluster("h100:2x8"), parse_cluster("h800:2x8")
    assert h100.bandwidth(crosses_nodes=False) == 900e9 / 2  # the datasheet counts both directions
    assert h800.bandwidth(crosses_nodes=False) == 400e9 / 2
    assert h100.bandwidth(crosses_nodes=True) == 400e9 / 8  # 400 Gb/s
    assert h800.bandwidth(crosses_nodes=True) == 100e9 / 8
    assert h100.host_bandwidth == pytest.approx(HOST_SHARE * 64e9), "of the link, as measured"
    assert 0 < h100.latency(crosses_nodes=False) < h100.latency(crosses_nodes=True) < 1e-4


def test_the_network_that_nobody_named_is_stated_with_its_source():
    assert "between hosts 12.5 GB/s" in parse_cluster("h800:2x8").describe()
    assert "8 x 100 Gb/s" in parse_cluster("h800:2x8").describe()


def test_devices_are_numbered_host_by_host():
    cluster = parse_cluster("h100:3x4")
    assert [cluster.host_of(device) for device in range(12)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert not cluster.crosses_nodes([4, 5, 6, 7])
    assert cluster.crosses_nodes([3, 4])
    with pytest.raises(IndexError):
        cluster.host_of(12)


def test_a_file_overrides_levels_in_gigabytes_and_microseconds(tmp_path: Path):
    text = "gpu: h800\nhosts: 4\nlevels:\n  network: {bandwidth: 50, latency: 5}\n  host: {bandwidth: 25}\n"
    cluster = parse_cluster(write(tmp_path, text))
    assert (cluster.name, cluster.devices) == ("c", 32)
    assert (cluster.bandwidth(True), cluster.latency(True), cluster.host_bandwidth) == (50e9, 5e-6, HOST_SHARE * 25e9)
    assert cluster.bandwidth(False) == 200e9  # what is not written is the GPU's own
    assert "c.yaml" in cluster.link(True).source


def test_a_host_has_a_tebibyte_for_its_gpus_by_default(tmp_path: Path):
    assert parse_cluster("h100:2x8").host_limit() == 2**40 // 8
    assert parse_cluster("h100:2x8").host_limit(2**30) == 2**30
    assert parse_cluster(write(tmp_path, "gpu: h100\nhosts: 2\nhost_memory: 512.5\n")).host_limit() == 512.5 * 2**30 / 8
    text = "gpus_per_host: 4\ngroups: {a: {gpu: h100, hosts: 1}, b: {gpu: h100, hosts: 1, host_memory: 256}}\n"
    assert parse_cluster(write(tmp_path, text)).host_limit() == 2**36


def test_mixed_kinds_run_at_the_slowest_link_and_fit_the_smallest_memory(tmp_path: Path):
    text = "gpus_per_host: 4\ngroups:\n  old: {gpu: a100-40, hosts: 1}\n  new: {gpu: h100, hosts: 2}\n"
    cluster = parse_cluster(write(tmp_path, text))
    assert cluster.devices == 12
    assert [gpu.short for gpu in cluster.gpus] == ["a100-40", "h100"]
    assert cluster.gpu.short == "a100-40"
    assert cluster.device_bytes == gpu_named("a100-40").device_bytes
    assert cluster.bandwidth(False) == 300e9
    assert cluster.bandwidth(True) == 25e9


def test_of_mixed_kinds_the_slowest_is_the_clock_though_another_has_less_memory(tmp_path: Path):
    text = "gpus_per_host: 8\ngroups:\n  a: {gpu: h800, hosts: 1}\n  b: {gpu: a800, hosts: 1}\n"
    cluster = parse_cluster(write(tmp_path, text))
    assert cluster.gpu.short == "a800"
    assert cluster.device_bytes == gpu_named("h800").device_bytes < gpu_named("a800").device_bytes


def test_groups_may_be_apart_further_than_their_hosts(tmp_path: Path):
    text = "gpus_per_host: 4\ngroups: {a: {gpu: h100, hosts: 1}, b: {gpu: h100, hosts: 3}}\n"
    alike = parse_cluster(write(tmp_path, text))
    assert not alike.is_heterogeneous and alike.between == alike.link(True)
    apart = parse_cluster(write(tmp_path, text + "between: {bandwidth: 3, latency: 50}\n"))
    assert apart.is_heterogeneous and (apart.bandwidth(True), apart.latency(True)) == (3e9, 5e-5)
    assert apart.uniform(apart.groups[0]).bandwidth(True) == 50e9  # inside a group nothing changes
    assert [group.name for group in apart.stage_groups(4) or ()] == ["a", "b", "b", "b"]
    assert apart.stage_groups(2) is None
    assert "between groups: 3 GB/s" in apart.describe()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100", "expected gpu:hosts x gpus"),
        ("h100:8", "expected gpu:hosts x gpus"),
        ("h100:0x8", "at least 1 host"),
        ("h1000:1x8", "did you mean h100?"),
        ("a100:1x8", "did you mean a100-40 or a100-80?"),
        ("tpu:1x8", "there are v100-32"),
        ("nowhere.yaml", "no such file"),
    ],
)
def test_text_that_is_no_cluster_gets_one_sentence(text: str, expected: str):
    with refused(text, expected):
        parse_cluster(text)


def test_hosts_may_be_in_pods(tmp_path: Path):
    text = "gpu: h100\nhosts: 8\npods: {hosts: 3, oversubscription: 7}\n"
    cluster = parse_cluster(write(tmp_path, text))
    assert cluster.pods == Pods(3, 7.0)
    assert "3 pods of 3 hosts, oversubscribed 7 to 1" in cluster.describe()
    llama = parse_cluster(f"{Path(__file__).parents[2]}/launch/clusters/llama3_pods.yaml")
    assert (llama.devices, llama.pods) == (24576, Pods(384, 7.0))
    assert parse_cluster(write(tmp_path, "gpu: h100\nhosts: 8\npods: {hosts: 4}\n")).pods == Pods(4, 1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu: h100\n", "c.yaml: the key hosts is missing"),
        ("hosts: 2\n", "c.yaml: the key gpu is missing"),
        ("gpu: h101\nhosts: 2\n", "c.yaml:1: gpu: no GPU is called 'h101'; did you mean h100?"),
        ("gpu: h100\nhosts: two\n", "c.yaml:2: hosts: expected a whole number, got 'two'"),
        ("gpu: h100\nhost: 2\n", "c.yaml:2: host: no such key; did you mean hosts?"),
        ("gpu: h100\nhosts: -1\n", "c.yaml:2: hosts: expected a number above 0, got -1"),
        ("gpu: h100\nhosts: 1\ngpus_per_host: 0\n", "c.yaml:3: gpus_per_host: expected a number above 0, got 0"),
        ("gpu: h100\nhosts: 1\nlevels: {net: {bandwidth: 1}}\n", "c.yaml:3: levels: unknown key 'net'"),
        ("gpu: h100\nhosts: 1\nlevels: {network: {latency: 1}}\n", "levels.network: the key bandwidth is missing"),
        ("gpu: h100\nhosts: 1\nlevels: {network: {bandwidth: 0}}\n", "c.yaml:3: levels.network.bandwidth: expected"),
        ("gpu: h100\ngroups: {a: {gpu: h100, hosts: 1}}\n", "c.yaml:1: gpu: with groups, each group has its own"),
        ("gpu: h100\nhosts: 1\nhost_memory: 0\n", "c.yaml:3: host_memory: expected a number above 0, got 0"),
        ("gpu: h100\nhosts: 1\nhost_memory: 1TB\n", "c.yaml:3: host_memory: expected a number"),
        ("groups: {a: {gpu: h10, hosts: 1}}\n", "c.yaml:1: groups.a.gpu: no GPU is called 'h10'"),
        ("- h100\n", "c.yaml:1: expected a mapping"),
        ("gpu: h100\nhosts: 2\nbetween: {bandwidth: 3}\n", "c.yaml:3: between: expected two groups or more"),
        ("gpu: h100\nhosts: 2\npods: {hosts: 0}\n", "c.yaml:3: pods.hosts: expected a number above 0, got 0"),
        ("gpu: h100\nhosts: 2\npods: {oversubscription: 2}\n", "c.yaml:3: pods: the key hosts is missing"),
        ("gpu: h100\nhosts: 2\npods: {hosts: 1, ratio: 2}\n", "c.yaml:3: pods: unknown key 'ratio'"),
        (
            "gpu: h100\nhosts: 2\npods: {hosts: 1, oversubscription: 0.5}\n",
            "c.yaml:3: pods.oversubscription: expected a number from 1 to 1000",
        ),
        (
            "groups: {a: {gpu: h100, hosts: 1}, b: {gpu: h100, hosts: 1}}\nbetween: {bandwidth: 0}\n",
            "c.yaml:2: between.bandwidth: expected a number above 0, got 0",
        ),
    ],
)
def test_a_wrong_file_gets_one_sentence_with_the_place(tmp_path: Path, text: str, expected: str):
    with refused(expected):
        parse_cluster(write(tmp_path, text))


@pytest.mark.parametrize("name", ["h100_a100", "two_networks"])
def test_clusters_to_try_are_mixed(name: str):
    cluster = parse_cluster(f"{Path(__file__).parents[2]}/launch/clusters/{name}.yaml")
    assert cluster.is_heterogeneous
    assert cluster.stage_groups(2) == cluster.groups
