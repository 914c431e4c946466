"""A headless Chromium, from Debian's packages, that keeps a record of what a page asks for and complains about."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"
DESKTOP, PHONE = (1280, 900), (390, 844)


class Browser:
    """One page at a time."""

    def __init__(self, driver: Chrome, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads

    def open(self, page: Path | str) -> None:
        """Open a file or an address, and wait until figures can be drawn."""
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(page.absolute().as_uri() if isinstance(page, Path) else page)
        self.wait("return window.Plotly !== undefined")

    def draw_all(self) -> None:
        """Draw every figure of the page, also those far below."""
        self.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        self.wait("return [...document.querySelectorAll('.plot')].every(p => p.dataset.drawn || p.matches('.failed'))")

    def wait(self, script: str, seconds: float = 60.0) -> Any:
        """Wait until a script returns something true."""
        end = time.monotonic() + seconds
        while not (value := self.driver.execute_script(script)):
            assert time.monotonic() < end, f"still not true after {seconds} s: {script}"
            time.sleep(0.05)
        return value

    def complaints(self) -> list[str]:
        """What the page wrote to the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses the page asked for, its own and inline data left out."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "blob:")) and url != self.driver.current_url]

    def use(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Pretend to be a screen of this size, in this theme; narrow ones are touched, not clicked."""
        width, height = size
        phone = width < 600
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.tell("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, selector: str = "body") -> None:
        """Take a picture of one element, also beyond the screen."""
        box = self.driver.execute_script(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1}",
            selector,
        )
        shot = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=box)
        path.write_bytes(base64.b64decode(shot["data"]))

    def tell(self, command: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile in `folder`."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    downloads = folder / "downloads"
    downloads.mkdir(parents=True)
    options.add_experimental_option(
        "prefs",
        {
            "download.default_directory": str(downloads),
            # Else only the first download of a page needs no confirmation.
            "profile.default_content_setting_values.automatic_downloads": 1,
        },
    )
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        yield Browser(driver, downloads)
    finally:
        driver.quit()
