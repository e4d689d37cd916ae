"""A real browser for tests: headless Chromium, driven over the pipe of its DevTools protocol.

Nothing is installed for it but Chromium itself; no port is opened, and nothing is asked of a network.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.patience import seconds

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = seconds(60)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
"""The network is closed to it: without those of the background, Chromium looks for its maker's hosts."""


def chromium() -> str:
    """The program: the one that `CHROMIUM` names, or the first of `NAMES` on PATH."""
    wanted = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else NAMES
    for name in wanted:
        if (found := shutil.which(name)) is not None:
            return found
    raise AssertionError(
        f"no {' or '.join(wanted)} on PATH, which the tests of HTML pages click through: apt-get install chromium (as "
        "root, `make test` does it itself), or CHROMIUM=/path/to/it"
    )


class Browser:
    """One page of Chromium. Everything that the page prints, throws and asks a network for is kept."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="jaxpar-browser-", ignore_cleanup_errors=True)
        self._size = width, height
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4, so the ends must lie above before they are put there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        for end in (to_browser, from_browser):
            os.close(end)
        self._log = Path(self._profile.name) / "log"
        command = [chromium(), *FLAGS, f"--user-data-dir={self._profile.name}/profile", "about:blank"]
        shell = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, "browser", *command],
                pass_fds=ends, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        for end in ends:
            os.close(end)
        self._buffer = b""
        self._calls = 0
        self._session: str | None = None
        self.console: list[str] = []
        """Text that was printed as a warning or an error, or thrown and not caught."""
        self.requests: list[str] = []
        """Addresses that were asked for, the page's own aside."""
        self._page = ""

    def start(self) -> None:
        """Attach to a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)

    def close(self) -> None:
        """End the browser and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    # What a person does

    def open(self, page: Path) -> None:
        """Load a file, to its end."""
        self._page = page.resolve().as_uri()
        self._loaded = False
        self.call("Page.navigate", url=self._page)
        self._until(lambda: self._loaded, f"{page} to load")

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        """Size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def dark(self, on: bool) -> None:
        """Whether the person prefers dark pages."""
        value = "dark" if on else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def click(self, selector: str) -> None:
        """A press of the mouse on the middle of an element, which is scrolled to first."""
        self._mouse(*self._middle(selector), "mousePressed", "mouseReleased")

    def hover(self, selector: str, part: float = 0.5) -> None:
        """The pointer over an element, at `part` of its width."""
        self._mouse(*self._middle(selector, part))

    def drag(self, selector: str, start: float, end: float) -> None:
        """The mouse pressed at one part of an element's width and let go at another."""
        x, y = self._middle(selector, start)
        self._mouse(x, y, "mousePressed")
        x, y = self._middle(selector, end)
        self._mouse(x, y, "mouseReleased")

    def press(self, key: str) -> None:
        """A key, by its DOM name, for the element that has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def choose(self, selector: str, value: str) -> None:
        """A value of a list."""
        self.read(
            f"(() => {{ const list = document.querySelector({json.dumps(selector)}); list.value = {json.dumps(value)};"
            "list.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    # What a person sees

    def read(self, expression: str) -> Any:
        """The value of JavaScript in the page, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of an element as it is shown."""
        return self.read(
            f"(found => found.innerText ?? found.textContent)(document.querySelector({json.dumps(selector)}))"
        )

    def wait_for_message(self, text: str) -> None:
        """Wait until the page has printed something with `text` in it: what a click throws comes after its answer."""
        self._until(lambda: any(text in printed for printed in self.console), f"the page to say {text!r}")

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return self.read(f"document.querySelectorAll({json.dumps(selector)}).length")

    def screenshot(self, file: Path, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page; also written to `file`."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        png = base64.b64decode(answer["data"])
        file.write_bytes(png)
        return png

    def pdf(self) -> bytes:
        """The page on paper."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    # The protocol

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; an error of the browser is an AssertionError."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise self._ended() from None
        answer: dict[str, Any] = {}

        def answered() -> bool:
            return bool(answer)

        self._until(answered, method, lambda event: answer.update(event) if event.get("id") == message["id"] else None)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _until(self, done: Callable[[], bool], what: str, also: Callable[[dict[str, Any]], Any] | None = None) -> None:
        """Take messages until `done`; between two without any, look again ten times a second."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")
            for event in self._events(0.1):
                self._note(event)
                if also is not None:
                    also(event)

    def _events(self, seconds: float) -> Iterator[dict[str, Any]]:
        if select.select([self._read], [], [], seconds)[0]:
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise self._ended()
            *whole, self._buffer = (self._buffer + piece).split(b"\0")
            yield from map(json.loads, whole)

    def _ended(self) -> AssertionError:
        self._process.wait(PATIENCE_S)
        return AssertionError(f"Chromium ended: {self._log.read_text(errors='replace')[-2000:]}")

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.console.append(" ".join(str(part.get("value", part.get("description"))) for part in about["args"]))
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.console.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.console.append(about["entry"]["text"])
            case "Network.requestWillBeSent":
                address = about["request"]["url"]
                if address != self._page and not address.startswith("data:"):
                    self.requests.append(address)

    # Places

    def _middle(self, selector: str, part: float = 0.5) -> tuple[float, float]:
        place = self.read(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return null;"
            "found.scrollIntoView({block: 'center', behavior: 'instant'}); const box = found.getBoundingClientRect();"
            f"return box.width && box.height ? [box.left + box.width * {part}, box.top + box.height / 2] : null; }})()"
        )
        if place is None:
            raise AssertionError(f"{selector}: no such element, or it is not to be seen")
        return place[0], place[1]

    def _mouse(self, x: float, y: float, *actions: str) -> None:
        for action in ("mouseMoved", *actions):
            button: dict[str, Any] = {} if action == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=action, x=x, y=y, **button)

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser that is ended whatever happens."""
    made = Browser(width, height)
    try:
        made.start()
        yield made
    finally:
        made.close()
