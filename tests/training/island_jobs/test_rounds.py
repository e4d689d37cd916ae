"""Rounds between islands: the outer update, who is accepted, and contributions that are refused."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import UserError
from jaxpar.training.island_jobs import array_files
from jaxpar.training.island_jobs.exchange import Exchange
from jaxpar.training.island_jobs.records import Contribution, from_bytes, to_bytes
from tests.training.island_jobs.three import OUTER, SHAPES, Trained, contributed, full_arrays, round_of


def same(*islands: Trained) -> bool:
    """Whether all have the same outer state, bit for bit."""
    first, *others = [(full_arrays(one.island.shared), full_arrays(one.island.momentum)) for one in islands]
    return all(
        np.array_equal(a[name], b[name]) for two in others for a, b in zip(first, two, strict=True) for name in a
    )


def contribution_file(folder: Path, index: int, island: str) -> Path:
    return folder / f"rounds/{index:08d}/contributions/{island}/0.safetensors"


def test_rounds_are_sgd_with_nesterov_momentum_in_float64(tmp_path: Path):
    islands = [Trained(tmp_path, name, columns) for name, columns in (("a", 1), ("b", 2), ("c", 3))]
    weights = {name: array.astype(np.float64) for name, array in islands[0].arrays.items()}
    momentum = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for _ in range(3):
        for one in islands:
            one.train()
        for name in SHAPES:
            gradient = np.mean([weights[name] - one.arrays[name] for one in islands], axis=0)
            momentum[name] = OUTER.momentum * momentum[name] + gradient
            weights[name] = weights[name] - OUTER.rate * (gradient + OUTER.momentum * momentum[name])
        for one in islands:
            one.contribute()
        for one in islands:
            assert sorted(one.advance().accepted) == ["a", "b", "c"]
        for name in SHAPES:
            assert islands[0].arrays[name].dtype == np.float32
            np.testing.assert_allclose(islands[0].arrays[name], weights[name], rtol=0, atol=5e-6)


def test_all_islands_have_the_same_bits_whatever_their_mesh_and_order(tmp_path: Path):
    """Three float32 numbers have another sum in another order."""
    islands = [Trained(tmp_path, name, columns) for name, columns in (("a", 1), ("b", 3), ("c", 2))]
    for turn in range(4):
        round_of(*islands[turn % 3 :], *islands[: turn % 3])
        assert same(*islands)


@pytest.mark.long
@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_a_wire_of_few_bits_is_decoded_alike_by_all(tmp_path: Path, wire: str):
    islands = [Trained(tmp_path, name, columns, wire=wire) for name, columns in (("a", 1), ("b", 2))]
    exact = [Trained(tmp_path / "exact", name, columns) for name, columns in (("a", 1), ("b", 2))]
    round_of(*islands)
    round_of(*exact)
    assert same(*islands)
    largest = max(np.abs(exact[0].arrays[name]).max() for name in SHAPES)
    difference = max(np.abs(islands[0].arrays[name] - exact[0].arrays[name]).max() for name in SHAPES)
    assert 0 < difference < {"int8": 0.02, "int4": 0.6}[wire] * largest


def test_a_round_is_repeated_from_what_is_stored(tmp_path: Path):
    a, b = Trained(tmp_path, "a"), Trained(tmp_path, "b", 2)
    for _ in range(3):
        round_of(a, b)
    (tmp_path / "rounds/00000003/outer.json").unlink()
    (tmp_path / "rounds/00000002/outer.json").unlink()
    late = Trained(tmp_path, "c", 3)
    assert late.island.round == 3 and late.island.digest == a.island.digest and same(a, b, late)


def test_a_slow_island_is_refused_by_its_round_and_goes_on_from_the_newest_state(tmp_path: Path):
    a, b = Trained(tmp_path, "a"), Trained(tmp_path, "b")
    round_of(a, b)
    b.train()
    for _ in range(2):
        closed = round_of(a)
        assert list(closed.accepted) == ["a"]
    assert closed.absent == []  # it was waited for once, and then no more
    before = a.arrays
    b.contribute()
    late = b.advance()
    assert late.round == 1 and list(late.accepted) == ["a"] and late.absent == ["b"]
    assert b.island.round == 3 and same(a, b)
    assert all(np.array_equal(before[name], a.arrays[name]) for name in before)
    assert sorted(round_of(a, b).accepted) == ["a", "b"]


def test_a_contribution_of_an_earlier_round_is_refused(tmp_path: Path):
    a, b = Trained(tmp_path, "a"), Trained(tmp_path, "b")
    round_of(a, b)
    a.train()
    a.contribute()
    source, target = (tmp_path / f"rounds/0000000{index}/contributions" for index in (0, 1))
    (target / "b").mkdir()
    (target / "b.json").write_bytes((source / "b.json").read_bytes())
    (target / "b/0.safetensors").write_bytes((source / "b/0.safetensors").read_bytes())
    closed = a.advance()
    assert list(closed.accepted) == ["a"] and closed.refused == {"b": "it is of round 0"}


@pytest.mark.parametrize(
    ("change", "why"),
    [({"base": "0" * 64}, "it began with another outer state"), ({"weights": "other"}, "it is of another model")],
    ids=["state", "model"],
)
def test_a_contribution_of_another_state_or_model_is_refused(tmp_path: Path, change: dict[str, str], why: str):
    a, *_ = contributed(tmp_path, "ab")
    record = tmp_path / "rounds/00000000/contributions/b.json"
    changed = {**vars(from_bytes(Contribution, record.read_bytes())), **change}
    record.write_bytes(to_bytes(Contribution(**changed)))
    assert a.advance().refused == {"b": why}


@pytest.mark.parametrize("damage", ["a bit", "shorter", "gone", "its record"])
def test_a_damaged_contribution_is_refused_and_the_others_go_on(tmp_path: Path, damage: str):
    a, b, c = contributed(tmp_path, "abc")
    file = contribution_file(tmp_path, 0, "b")
    content = bytearray(file.read_bytes())
    if damage == "a bit":
        content[-3] ^= 1
        file.write_bytes(content)
    elif damage == "shorter":
        file.write_bytes(content[:-8])
    elif damage == "gone":
        file.unlink()
    else:
        file.parent.with_suffix(".json").write_text("{}")
    closed = a.advance()
    assert sorted(closed.accepted) == ["a", "c"] and list(closed.refused) == ["b"]
    c.advance()
    b.advance()
    assert same(a, b, c)


def test_what_is_damaged_after_its_round_was_closed_is_not_used(tmp_path: Path):
    """The island that closed it has stored the next outer state: another one takes that."""
    a, b = contributed(tmp_path, "ab")
    a.advance()
    file = contribution_file(tmp_path, 0, "a")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    b.advance()
    assert same(a, b) and "the contribution of a cannot be read" in b.said[-1]


def test_a_contribution_that_was_replaced_after_its_round_was_closed_is_not_used(tmp_path: Path):
    """Its record and its file fit each other, and are not those that were accepted."""
    a, b = contributed(tmp_path / "one", "ab")
    other = Trained(tmp_path / "two", "b")
    other.train()
    other.arrays["up"] += 1
    other.contribute()
    a.advance()
    contributions = [folder / "rounds/00000000/contributions" for folder in (tmp_path / "two", tmp_path / "one")]
    for name in ("b.json", "b/0.safetensors"):
        (contributions[1] / name).write_bytes((contributions[0] / name).read_bytes())
    b.advance()
    assert same(a, b) and "the contribution of b cannot be read (it was replaced" in b.said[-1]
    (tmp_path / "one/rounds/00000001/outer.json").unlink()
    with pytest.raises(UserError, match=r"round 0 cannot be repeated .*it was replaced after its round was closed"):
        Trained(tmp_path / "one", "c")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    """The processes of a job agree on who is refused, so an error of one of them is not raised."""
    a, *_ = contributed(tmp_path, "ab")
    entries = array_files.file_entries

    def read(folder: Path, *args: Any, **keys: Any):
        if folder.name == "b":
            raise OSError(number, os.strerror(number), str(folder))
        return entries(folder, *args, **keys)

    monkeypatch.setattr(array_files, "file_entries", read)
    assert a.advance().refused == {"b": f"its file 0.safetensors cannot be read ({os.strerror(number)})"}


def test_a_damaged_outer_state_is_passed_over(tmp_path: Path):
    a = Trained(tmp_path, "a")
    round_of(a)
    round_of(a)
    file = tmp_path / "rounds/00000002/outer/a/0.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    late = Trained(tmp_path, "b")
    assert same(a, late) and "The outer state of round 2 is not used" in late.said[0]
    for file in tmp_path.glob("rounds/*/outer/a/0.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"none of its \d outer states is intact"):
        Trained(tmp_path, "c")


def test_weights_that_are_not_finite_are_not_contributed(tmp_path: Path):
    a, b = Trained(tmp_path, "a"), Trained(tmp_path, "b")
    for one in (a, b):
        one.train()
    b.arrays["up"][0, 0] = np.inf
    b.contribute()
    a.contribute()
    assert list(a.advance().accepted) == ["a"]
    b.advance()
    assert same(a, b) and "not finite" in b.said[0]


def test_an_island_that_ended_is_not_waited_for(tmp_path: Path):
    a, b = Trained(tmp_path, "a", wait_s=1e6), Trained(tmp_path, "b", wait_s=1e6)
    round_of(a, b)
    b.island.exchange.leave(1)
    assert list(round_of(a).accepted) == ["a"]
    b = Trained(tmp_path, "b", wait_s=1e6)
    assert sorted(round_of(a, b).accepted) == ["a", "b"]


def test_a_restarted_island_contributes_once(tmp_path: Path):
    """The outer gradient that was stored before a kill counts, whatever the repeated steps give."""
    a, *_ = contributed(tmp_path, "ab")
    stored = contribution_file(tmp_path, 0, "b").read_bytes()
    again = Trained(tmp_path, "b")
    again.train()
    again.arrays["up"] += 1
    again.contribute()
    assert contribution_file(tmp_path, 0, "b").read_bytes() == stored
    a.advance()
    again.advance()
    assert same(a, again)


def test_arrays_of_old_rounds_are_removed_and_records_stay(tmp_path: Path):
    a = Trained(tmp_path, "a", keep_rounds=2)
    for _ in range(5):
        round_of(a)
    arrays = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors"))
    assert [path.split("/")[1] for path in arrays] == ["00000003"] * 2 + ["00000004"] * 2 + ["00000005"]
    assert all(a.island.exchange.closed(index) is not None for index in range(5))
    assert same(a, Trained(tmp_path, "b"))


def test_arrays_without_a_record_are_removed_with_their_round(tmp_path: Path):
    """An island that was killed between its arrays and their record leaves them."""
    a = Trained(tmp_path, "a", keep_rounds=1)
    orphan = contribution_file(tmp_path, 0, "killed")
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half")
    for _ in range(2):
        round_of(a)
    assert os.listdir(tmp_path / "rounds/00000000/contributions") == ["a.json"]


def test_arrays_that_cannot_be_removed_end_no_island_and_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def busy(path: Path):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    a = Trained(tmp_path, "a", keep_rounds=1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", busy)
        for _ in range(2):
            round_of(a)
    assert "Arrays of old rounds stay" in a.said[-1] and os.strerror(errno.ENOTEMPTY) in a.said[-1]
    assert contribution_file(tmp_path, 0, "a").exists()
    round_of(a)
    assert not list(tmp_path.glob("rounds/0000000[01]/**/*.safetensors"))


def test_a_round_waits_for_its_quorum(tmp_path: Path):
    [a] = contributed(tmp_path, "a", quorum=2)
    assert a.waits() == [
        "Round 0 waits for 2 islands (islands.quorum), and has the outer gradients of a.",
    ]
    contributed(tmp_path, "b", quorum=2)
    assert sorted(a.advance().accepted) == ["a", "b"]


def test_a_refused_contribution_is_none_of_a_quorum(tmp_path: Path):
    """The round continues with a third island, or with a smaller quorum after a restart."""
    a, b = contributed(tmp_path, "ab", quorum=2)
    contribution_file(tmp_path, 0, "b").unlink()
    assert a.waits() == b.waits() == [
        "Round 0 waits for 2 islands (islands.quorum), and has the outer gradients of a; refused b (its file "
        "0.safetensors is missing).",
    ]  # fmt: skip
    [c] = contributed(tmp_path, "c", quorum=2)
    closed = c.advance()
    assert sorted(closed.accepted) == ["a", "c"] and list(closed.refused) == ["b"]
    assert a.advance() == b.advance() == closed and same(a, b, c)


def test_a_round_without_finite_weights_ends_its_islands(tmp_path: Path):
    islands = [Trained(tmp_path, name) for name in "ab"]
    for one in islands:
        one.train()
        one.arrays["up"][0, 0] = np.nan
    islands[0].contribute()
    islands[0].waits()  # the other one may have finite weights
    islands[1].contribute()
    for one in islands:
        with pytest.raises(UserError, match=r"round 0 of .* has no outer gradient that counts, and no island is"):
            one.advance()


def test_an_exchange_is_of_one_model_and_one_outer_optimizer(tmp_path: Path):
    agreed = {"model.layers": 3, "islands.wire": None}
    Exchange(tmp_path, "a").join(agreed)
    Exchange(tmp_path, "b").join(agreed)
    with pytest.raises(UserError, match=r"with another configuration \(model.layers: 3 -> 4\)"):
        Exchange(tmp_path, "b").check({**agreed, "model.layers": 4})
    (tmp_path / "exchange.json").write_text("[]{")
    with pytest.raises(UserError, match=r"exchange.json is damaged"):
        Exchange(tmp_path, "b").check(agreed)


def test_a_damaged_end_of_a_round_is_one_sentence(tmp_path: Path):
    a = Trained(tmp_path, "a")
    round_of(a)
    closed = tmp_path / "rounds/00000000/closed.json"
    record = json.loads(closed.read_text())
    for content in ("", "[]", json.dumps({**record, "round": "0"})):
        closed.write_text(content)
        with pytest.raises(UserError, match=r"closed\.json cannot be used \(its record"):
            Trained(tmp_path, "b")
    closed.write_text(json.dumps({**record, "accepted": {"a": "0" * 64}}))
    with pytest.raises(UserError, match=r"closed\.json cannot be used \(its next outer state is not that of"):
        Trained(tmp_path, "b")
    os.remove(closed)
