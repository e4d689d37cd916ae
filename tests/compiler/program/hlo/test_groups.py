"""Replica groups in each of XLA's forms, and the mesh axes that they are."""

import pytest

from jaxpar.compiler.program.hlo.groups import groups_of
from jaxpar.compiler.program.hlo.records import Op, ProgramError
from tests.compiler.program.programs import module, only

MESH = {"replica": 2, "fsdp": 2, "tensor": 2}


def collective(attributes: str, opcode: str = "all-reduce") -> Op:
    return only(module(f"%a = f32[8]{{0}} parameter(0)\n%x = f32[8]{{0}} {opcode}(%a){attributes}"), opcode)


@pytest.mark.parametrize(
    ("form", "rows"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("{{0,4},{1,5}}", [(0, 4), (1, 5)]),
        ("{}", [tuple(range(8))]),
        ("[4,2]<=[2,2,2]T(0,2,1)", [(0, 2), (1, 3), (4, 6), (5, 7)]),
        ("mesh['a'=2,'b'=4] {'b'}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", [(0, 4, 1, 5), (2, 6, 3, 7)]),
        ("mesh[a=2,b=4] {b}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['a'=8] {'a':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", [(0, 2), (1, 3)]),
    ],
)
def test_forms_of_groups(form: str, rows: list[tuple[int, ...]]):
    found = groups_of(collective(f", replica_groups={form}"), 8)
    assert sorted(found.rows) == sorted(rows) and found.size == len(rows[0])


@pytest.mark.parametrize(
    ("form", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",)), ("[4,2]<=[2,2,2]T(0,2,1)", ("fsdp",)),
        ("[4,2]<=[2,4]T(1,0)", ("replica",)), ("[2,4]<=[8]", ("fsdp", "tensor")),
        ("mesh['replica'=2,'fsdp'=2,'tensor'=2] {'tensor','replica'}", ("replica", "tensor")),
        ("[1,8]<=[8]", ("replica", "fsdp", "tensor")), ("[8,1]<=[8]", ()),
    ],
)  # fmt: skip
def test_axes_of_groups(form: str, axes: tuple[str, ...]):
    op = collective(f", replica_groups={form}")
    assert groups_of(op, 8).axes(MESH, op) == axes


def test_a_permutation_moves_over_the_axes_in_which_sources_and_targets_differ():
    op = collective(", source_target_pairs={{0,4},{1,5},{2,6},{3,7}}", "collective-permute")
    found = groups_of(op, 8)
    assert found.permutes and found.axes(MESH, op) == ("replica",) and found.crosses(gpus_per_host=4)
    assert not found.crosses(gpus_per_host=8)


@pytest.mark.parametrize(
    ("form", "per_host", "crosses"), [("[4,2]<=[8]", 2, False), ("[2,4]<=[8]", 2, True), ("[1,8]<=[8]", 8, False)]
)
def test_groups_cross_hosts_where_a_member_is_on_another(form: str, per_host: int, crosses: bool):
    assert groups_of(collective(f", replica_groups={form}"), 8).crosses(per_host) is crosses


@pytest.mark.parametrize("form", ["<8>", "{{0,1},{2}}", "mesh['a'=2] {'b'}"])
def test_other_forms_are_refused(form: str):
    with pytest.raises(ProgramError, match=r"not understood|different sizes"):
        groups_of(collective(f", replica_groups={form}"), 8)


@pytest.mark.parametrize(
    ("form", "problem"), [("{{0,1},{2,3}}", "neither whole axes"), ("[2,8]<=[16]", "does not have")]
)
def test_groups_that_are_no_axes_are_refused(form: str, problem: str):
    op = collective(f", replica_groups={form}")
    with pytest.raises(ProgramError, match=problem):
        groups_of(op, 8).axes(MESH, op)
