"""The Hopper kernels compile for H100s that are not at hand, inside a checked `shard_map`, and fit their registers."""

from typing import Any, NamedTuple

import pytest

from pallas_kernels.attention.mosaic.schedule import REGISTERS
from pallas_kernels.attention.mosaic.tiles import TABLE, Tiles, tiles
from tests.gpu_compile import in_child
from tests.pallas_kernels import machine_code

SHARED = machine_code.SHARED["h100"]


class Configuration(NamedTuple):
    """What is compiled; the arguments of `gpu_mosaic.kernels`."""

    widths: tuple[int, int]
    mask: str
    softcap: float | None = None
    deterministic: bool = False
    exact: bool = False
    dtype: str = "bfloat16"


DEFAULT = Configuration((128, 128), "causal")
OTHERS = [
    Configuration((64, 64), "packed-window", 30.0, exact=True),
    Configuration((96, 96), "packed-window", 30.0, exact=True),
    Configuration((128, 128), "packed-window", exact=True),
    Configuration((128, 128), "packed-window", 30.0, dtype="float16"),
    Configuration((128, 128), "packed-prefix", 30.0, deterministic=True),
    Configuration((192, 128), "packed-window", 30.0, exact=True),
    Configuration((256, 256), "packed-window", 30.0, exact=True),
    *(Configuration(widths, "causal") for widths in TABLE if widths != (128, 128)),
    *(Configuration(widths, "full") for widths in TABLE),
    *(Configuration(widths, "packed-window") for widths in TABLE if widths != (128, 128)),
    *(Configuration(widths, "packed-window", deterministic=True) for widths in ((64, 64), (96, 96), (192, 128))),
    *(Configuration(widths, "packed-window", 30.0, deterministic=True) for widths in ((64, 64), (96, 96))),
    Configuration((192, 128), "packed-window", 30.0, deterministic=True, exact=True),
]


def check(configuration: Configuration, found: dict[str, Any]) -> None:
    widths, deterministic = configuration.widths, configuration.deterministic
    entry = TABLE[widths]
    fused = entry.fused is not None and not deterministic
    backward = ["attention_key_gradients"] * (1 if fused else len(entry.key_gradients))
    backward += [] if fused else ["attention_query_gradients"]
    assert sorted(compiled_kernel["name"] for compiled_kernel in found["kernels"]) == sorted(
        ["attention_forward", *backward]
    )
    assert len(found["shared"]) == 1 + len(backward) and max(found["shared"]) <= SHARED
    for compiled_kernel in found["kernels"]:
        machine_code.check(compiled_kernel)
        assert compiled_kernel["wgmma"] > 0 and compiled_kernel["tma"] > 0, compiled_kernel
        assert compiled_kernel["tanh"] == 0, compiled_kernel
        pairs = [
            count for count in compiled_kernel["beside"] if count >= _scores(configuration, compiled_kernel["name"])
        ]
        backward = compiled_kernel["name"] == "attention_key_gradients"  # whose second wait leaves dV under way
        assert len(compiled_kernel["beside"]) == len(pairs) * (1 + backward), compiled_kernel
        assert compiled_kernel["setmaxnreg"] == [*REGISTERS], compiled_kernel
        assert (compiled_kernel["reduce"] > 0) == (fused and compiled_kernel["name"] == "attention_key_gradients"), (
            compiled_kernel
        )
    waits = sorted((one["name"], one["waits"].count(0), one["waits"].count(1)) for one in found["kernels"])
    assert waits == sorted(_waits(configuration, fused))
    assert all(len(one["waits"]) == one["waits"].count(0) + one["waits"].count(1) for one in found["kernels"])


def _waits(configuration: Configuration, fused: bool) -> list[tuple[str, int, int]]:
    """Of each kernel: its name, waits for all products (`wgmma.wait_group 0`), and waits that leave one under way.

    A loop for blocks that the mask cuts and one for the others: where scores and a second product are issued together,
    the scores are waited for while the second is under way, else each is waited for by itself. In the forward the
    second is of the block before, so that a tile's first scores and last product have a wait of their own. In the
    backward it is dP, which is waited for while dV is under way; dQ, and then all of a step have the last waits.
    """
    entry = _entry(configuration)
    of_loops = {"all": 2, "whole": 1, "none": 0}
    deep = of_loops[entry.forward.overlapped]
    ends = 0 if entry.forward.overlapped == "none" else 2
    found = [("attention_forward", 4 - deep + ends, deep)]
    if fused:
        assert entry.fused is not None
        launches = [("kvq", entry.fused)]
    else:
        launches = list(entry.key_gradients)
        deep = 0 if configuration.widths == (256, 256) else 2
        found.append(("attention_query_gradients", 6 - deep, deep))
    for letters, gradients in launches:
        deep = of_loops[gradients.together] * letters.count("k") * (1 + letters.count("v"))
        parts = 1 + (configuration.widths[0] in (96, 192))  # a consumer has the wider or narrower part of dQ
        alone = gradients.together == "none" and {"k", "v"} <= {*letters}  # dV, before dP
        waits = 2 + letters.count("k") + letters.count("q") * parts + alone
        found.append(("attention_key_gradients", 2 * waits - deep, deep))
    return found


def _scores(configuration: Configuration, name: str) -> int:
    """Of a block, how many a thread exponentiates while the second product is under way: 64 rows, of 128 threads."""
    entry = _entry(configuration)
    fused = None if configuration.deterministic else entry.fused
    columns = {
        "attention_forward": entry.forward.keys,
        "attention_query_gradients": entry.query_gradients.keys,
        "attention_key_gradients": (fused or entry.key_gradients[0][1]).queries,
    }
    return columns[name] * 64 // 128


def _entry(configuration: Configuration) -> Tiles:
    return tiles(*configuration.widths, configuration.softcap)


def _name(configuration: Configuration) -> str:
    widths = "-".join(map(str, dict.fromkeys(configuration.widths)))
    return " ".join([widths, *(str(value) for value in configuration[1:] if value)])


@pytest.mark.matrix(quick=(_name(DEFAULT),), ci=2)
@pytest.mark.parametrize("configuration", [DEFAULT, *OTHERS], ids=_name)
def test_kernels_use_tensor_cores_and_tma_and_spill_nothing(configuration: Configuration) -> None:
    child = "tests.pallas_kernels.attention.mosaic.gpu_mosaic:kernels"
    found = in_child(child, *configuration.widths, *configuration[1:])
    check(configuration, found)


def test_two_products_are_in_flight_wherever_registers_hold_them() -> None:
    """The widths and soft-caps that the table excepts, which spill."""
    forms = {(widths, cap): tiles(*widths, cap) for widths in TABLE for cap in (None, 30.0)}
    forwards = {form: entry.forward.overlapped for form, entry in forms.items()}
    assert {form for form, blocks in forwards.items() if blocks == "none"} == {
        ((256, 256), cap) for cap in (None, 30.0)
    }
    assert {form for form, blocks in forwards.items() if blocks == "whole"} == {((128, 128), 30.0)}
    assert {form for form, entry in forms.items() if entry.fused and entry.fused.together == "none"} == {
        ((64, 64), 30.0)
    }


def test_every_entry_is_compiled() -> None:
    """With a soft-cap and without, and what is the same bits in every run."""
    compiled = [DEFAULT, *OTHERS]
    entries = {(widths, tiles(*widths, cap)) for widths in TABLE for cap in (None, 30.0)}
    assert entries == {(one.widths, _entry(one)) for one in compiled}
    assert {one.widths for one in compiled if one.softcap} == set(TABLE)
    apart = {widths for widths, entry in TABLE.items() if entry.fused is not None}
    assert {one.widths for one in compiled if one.deterministic} == apart
