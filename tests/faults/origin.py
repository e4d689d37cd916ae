"""A pytest plugin that states which copy of the code was tested, and lets a property report one failure, as a test.

By default Hypothesis reports all distinct failures of a property as a group, whose line in the summary is that of no
assertion.
"""

import importlib.util

import pytest
from hypothesis import settings

settings.register_profile("one failure", settings.default, report_multiple_bugs=False)
settings.load_profile("one failure")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for package in ("jaxpar", "pallas_kernels"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        terminalreporter.write_line(f"tested: {spec.origin}")
