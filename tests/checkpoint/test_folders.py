"""The folders that are checkpoints, those of them that may go, and how one goes."""

import pytest

from jaxpar.checkpoint import folders


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "goes"),
    [(1, None, [0, 10, 20, 30, 40]), (3, None, [0, 10, 20]), (9, None, []), (1, 20, [10, 30]), (2, 30, [10, 20]),
     (1, 1, [])],
)  # fmt: skip
def test_what_is_neither_new_nor_kept_for_ever_goes(keep_last, keep_every, goes):
    assert folders.deletable(dict.fromkeys([0, 10, 20, 30, 40, 50], 0), keep_last, keep_every) == goes


@pytest.mark.parametrize(
    ("skipped", "keep_last", "goes"),
    [
        ({10: 0, 20: 0, 30: 2}, 1, []), ({10: 0, 20: 0, 30: 2, 40: 12, 50: 22}, 2, []),
        ({10: 0, 20: 0, 30: 2, 40: 0}, 1, [10, 20, 30]), ({10: 0, 20: 0, 30: 2, 40: 0}, 2, [10]),
        ({10: 0, 20: 0, 30: 2, 40: 12, 50: 0, 60: 0}, 2, [10, 20, 30, 40]), ({10: 3}, 1, []), ({}, 1, []),
    ],
)  # fmt: skip
def test_nothing_goes_for_a_checkpoint_after_skipped_steps_and_as_many_healthy_ones_stay(skipped, keep_last, goes):
    assert folders.deletable(skipped, keep_last, None) == goes


def test_only_folders_named_by_a_step_are_checkpoints(tmp_path):
    names = ["00000012", "00000003", "123456789", "12", "000000012", "00000004.broken-1", "00000005.removing", "x"]
    for name in [*names, "\N{ARABIC-INDIC DIGIT SEVEN}" * 8]:  # Digits, but not ASCII's.
        (tmp_path / name).mkdir()
    (tmp_path / "00000009").write_text("a file")
    for name, target in {"00000015": "00000003", "00000016": "00000016", "00000017": "lost"}.items():
        (tmp_path / name).symlink_to(target)
    assert folders.listed_steps(tmp_path) == [3, 12, 15, 123456789]


def test_a_removed_checkpoint_loses_its_name_first_and_leftovers_go_later(tmp_path, monkeypatch):
    path = folders.step_folder(tmp_path, 5)
    (path / "state").mkdir(parents=True)
    with monkeypatch.context() as crash:
        crash.setattr(folders.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folders.remove(path)
    assert folders.listed_steps(tmp_path) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["00000005.removing"]
    path.mkdir()
    folders.remove(path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "00000007.removing" / "state").mkdir(parents=True)
    folders.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
