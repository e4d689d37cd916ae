"""How many files a process may open."""

import resource

import pytest

from jaxpar.hardware import open_files
from jaxpar.hardware.open_files import allow_more_files


@pytest.mark.parametrize(
    ("soft", "hard", "more", "wanted"),
    [
        (1024, 4096, 500, (1524, 4096)),
        (1024, 4096, 9000, (4096, 4096)),
        (1024, resource.RLIM_INFINITY, 9000, (10024, resource.RLIM_INFINITY)),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9, None),
    ],
)
def test_the_limit_grows_as_far_as_the_system_lets_it(monkeypatch, soft, hard, more, wanted):
    set_to = []
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, limits: set_to.append(limits))
    allow_more_files(more)
    assert set_to == ([wanted] if wanted else [])
