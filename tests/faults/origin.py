"""A pytest plugin that states which copy of the code was tested."""

import importlib.util

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for package in ("jaxpar", "pallas_kernels"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        terminalreporter.write_line(f"tested: {spec.origin}")
