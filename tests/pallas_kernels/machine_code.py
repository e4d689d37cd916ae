"""The machine code that ptxas made of a kernel, as NVIDIA's disassembler prints it.

ptxas moves instructions: what a program asks to run while a product is under way may be behind the wait for it. So what
is in flight is read here, and not in PTX.
"""

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from pallas_kernels.attention.mosaic.schedule import REGISTERS

SHARED = {"a100-80": 101376, "h100": 232448, "b200": 232448}
"""Bytes of shared memory that a thread block may have; an A100's may have 166912, but all of its generation this."""

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][\w.]*)([^;\n]*);", re.MULTILINE)


def disassembler() -> Path:
    """What launch/setup.sh installs for the tests, else that of a CUDA toolkit on PATH."""
    installed = Path(sys.prefix) / "disassembler" / "nvidia" / "cu13" / "bin" / "nvdisasm"
    found = str(installed) if installed.is_file() else shutil.which("nvdisasm")
    assert found, f"reading machine code needs nvdisasm, which is neither {installed} nor on PATH: make setup-test"
    return Path(found)


def disassembled(cubin: Path) -> str:
    """What `described` reads, of a file that ptxas wrote."""
    return subprocess.run([disassembler(), "-c", cubin], capture_output=True, text=True, check=True).stdout


def waits(ptx: str) -> list[int]:
    """How many products each wait of a program leaves under way."""
    return sorted(map(int, re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", ptx)))


def described(text: str) -> dict[str, Any]:
    """Of a kernel's machine code: accesses of `local` memory, which spills are; `products` of the tensor cores; the
    `depths` of its waits, how many products each leaves under way; and how many exponentials run `beside` those, of
    each wait that leaves one, until the wait that follows."""
    instructions = _INSTRUCTION.findall(text)
    assert instructions, "no machine code"
    found = [place for place, (opcode, _) in enumerate(instructions) if opcode.startswith("WARPGROUP.DEPBAR")]
    depth = lambda place: int(instructions[place][1].split(",")[1], 16)
    exponentials = lambda part: sum(opcode.startswith("MUFU.EX2") for opcode, _ in part)
    return {
        "local": sum(opcode.startswith(("STL", "LDL")) for opcode, _ in instructions),
        "products": sum(bool(re.match("[A-Z]GMMA", opcode)) for opcode, _ in instructions),
        "depths": sorted(map(depth, found)),
        "beside": [exponentials(instructions[here:there]) for here, there in pairwise(found) if depth(here)],
    }


def check(kernel: dict[str, Any]) -> None:
    """ptxas spilled nothing, serialized no products, and left the waits that the program has."""
    assert kernel["spilled"] == 0 and kernel["local"] == 0, kernel
    assert kernel["serialized"] == 0 and kernel["registers"] <= 255, kernel
    assert kernel["products"] == kernel["wgmma"] and kernel["depths"] == kernel["waits"], kernel


def check_tiled_matmul(kernel: dict[str, Any]) -> None:
    """A product of tiles of scales: `check`, with rows from TMA and 128 products of each piece in one sum."""
    check(kernel)
    assert kernel["tma"] > 0, kernel
    assert kernel["wgmma"] == 8 and kernel["waits"] == [0, 0], "128 products of each piece, then the sums outside"
    assert kernel["setmaxnreg"] == [*REGISTERS], kernel
