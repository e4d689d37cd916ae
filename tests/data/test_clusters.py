"""Clusters of a token folder: each document once, balanced, the same by seed; one sentence for each mistake."""

import json

import numpy as np
import pytest

from jaxpar.data.clusters.kmeans import SLACK, balanced, centers_of, normalized
from jaxpar.data.clusters.ngrams import BEFORE, ORDERS, buckets, grams_of
from jaxpar.data.clusters.split import RECORD, Clustering, cluster_folder
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.prepare import main
from tests.data.folders import contents, decoded, prepared, quiet, texts
from tests.sentences import refused, refused_by_command

TOPICS = ("the ship sails over the blue sea", "import np; def f(x): np.sum(x*x)", "0123 4567 8901 2345 6789 0123 45")


def of_topics(each: int) -> list[str]:
    """Documents of each topic in turn, of various lengths, and their number."""
    return [f"{TOPICS[one % 3]} " * (2 + one % 5) + str(one) for one in range(3 * each)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("topics") / "tokens", of_topics(20))


def test_clusters_have_each_document_once_and_their_topic(folder):
    paths = cluster_folder(folder.path, Clustering(3), quiet())
    train, validation = decoded(folder)
    parts = [decoded(open_token_folder(path, key="cluster")) for path in paths]
    assert sorted(text for part, _ in parts for text in part) == sorted(train)
    assert sorted(text for _, part in parts for text in part) == sorted(validation)
    for path in paths:
        open_token_folder(path, key="cluster").check()
    topics = [[sum(text.startswith(topic) for text in part) for topic in TOPICS] for part, _ in parts]
    assert sorted(row.index(max(row)) for row in topics) == [0, 1, 2]
    assert sum(map(max, topics)) >= 0.8 * len(train), "similar documents are together, as far as balance lets them"
    for row, (_, part) in zip(topics, parts, strict=True):
        assert all(text.startswith(TOPICS[row.index(max(row))]) for text in part), "validation documents too"
    total = [folder.index.text_bytes_in(split) for split in ("train", "validation")]
    indexes = [open_token_folder(path, key="cluster").index for path in paths]
    assert [sum(index.text_bytes_in(split) for index in indexes) for split in ("train", "validation")] == total


def test_the_same_seed_gives_the_same_bytes_and_a_killed_command_ends(folder, tmp_path):
    before = contents(folder.path)
    assert [path.name for path in cluster_folder(folder.path, Clustering(3), quiet())] == [
        "cluster-0", "cluster-1", "cluster-2",
    ]  # fmt: skip
    assert contents(folder.path) == before, "finished clusters are not made again"
    (folder.path / RECORD).unlink()
    (folder.path / "cluster-1" / "index.json").unlink()
    cluster_folder(folder.path, Clustering(3), quiet())
    assert contents(folder.path) == before


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_balanced(seed):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 100, 300)
    vectors = normalized(draw.normal(size=(300, 8)) + 3 * np.eye(8)[0])
    centers = centers_of(vectors, sizes, 5, seed)
    assert (centers == centers_of(vectors, sizes, 5, seed)).all()
    clusters = balanced(vectors @ centers.T, sizes)
    share = sizes.sum() / 5
    assert np.bincount(clusters, sizes, 5).max() <= max(share * (1 + SLACK), share + sizes.max())
    assert np.bincount(clusters, sizes, 5).max() < 1.1 * share, "small documents fill the rooms"
    # All want to be in one cluster, and one document is nearly everything.
    alike = np.tile(np.float32([[1, 0, 0]]), (4, 1))
    assert sorted(np.bincount(balanced(alike, np.array([97, 1, 1, 1])), minlength=3).tolist()) == [1, 1, 2]


def test_the_document_that_would_lose_most_by_its_second_choice_has_its_first():
    similarity = np.array([[0.9, 0.8], [0.9, 0.1]], np.float32)
    for order in ([0, 1], [1, 0]):
        assert balanced(similarity[order], np.array([1, 1])).tolist() == [[1, 0][one] for one in order]


def test_ngrams_of_a_token_are_the_same_wherever_it_is_and_in_jax():
    import jax.numpy as jnp

    grams = grams_of(np.array([5, 6, 7, 5, 6, 7], np.uint16))
    assert grams[0].tolist() == [BEFORE, BEFORE, 5] and grams[-1].tolist() == [5, 6, 7]
    hashed = buckets(grams, 1024)
    assert len(hashed) == ORDERS
    assert [one[2] for one in hashed] == [one[5] for one in hashed]
    assert all(
        (np.asarray(one) == other).all() for one, other in zip(buckets(jnp.asarray(grams), 1024), hashed, strict=True)
    )
    many = buckets(grams_of(np.arange(4096)), 256)
    assert all(np.bincount(one, minlength=256).max() < 48 for one in many), "buckets are used alike"


def test_other_clusters_are_refused(folder):
    cluster_folder(folder.path, Clustering(3), quiet())
    for other, parts in (
        (Clustering(2), ("clusters 3", "now it is 2")),
        (Clustering(3, 1), ("seed 0", "now it is 1")),
        (Clustering(3, 0, None, "abc"), ("model None", "abc")),
    ):
        with refused(RECORD, *parts, "expected the same"):
            cluster_folder(folder.path, other, quiet())
    record = folder.path / RECORD
    raw = record.read_bytes()
    record.write_text(json.dumps({"clusters": 3}))
    with refused(RECORD, "damaged", "remove it"):
        cluster_folder(folder.path, Clustering(3), quiet())
    record.write_bytes(raw)


def test_mistakes_of_the_command(capsys, tmp_path):
    out = prepared(tmp_path / "small", texts(12)).path
    for arguments, parts in (
        (["--clusters", "1", "--out", out], ("--clusters 1", "expected 2 or more")),
        (["--clusters", "40", "--out", out], ("--clusters 40", "documents to train on", "at most")),
        (["--cluster-by", "m", "--verify", out], ("--cluster-by is for --clusters",)),
        (["--clusters", "2", "--verify", out], ("--clusters", "no --verify")),
        (["--clusters", "2"], ("--out is missing",)),
        (["--clusters", "2", "--out", tmp_path / "none"], ("--out", "index.json")),
    ):
        capsys.readouterr()
        code = main([str(one) for one in arguments])
        refused_by_command(code, "", capsys.readouterr().err, *parts)
    assert not list(out.glob("cluster*"))
