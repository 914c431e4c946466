"""The page in a real browser: it opens from disk, asks for nothing, and does what it offers."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.invented import Plot, write_run
from server.history.run_directory import write_text
from server.report import page, read_run
from tests.server.report.test_report import EVIL
from tests.support.browser import CHROMIUM, DESKTOP, DRIVER, MISSING, PHONE, Browser, chromium

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)]

PLOTS = {
    "one site": Plot(sites=1, kinds=1, rounds=2),
    "one group": Plot(sites=8, kinds=1, rounds=3, method="fedavg"),
    "all alike": Plot(sites=8, kinds=1, spread=0.0, rounds=2),
    "failures and moves": Plot(sites=12, kinds=3, trouble=True, outcome="failed"),
    "two hundred sites": Plot(sites=200, kinds=7, rounds=5, trouble=True),
    "preview": Plot(rounds=0),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


def page_of(folder: Path, *plots: Plot) -> Path:
    records = [read_run(write_run(folder / f"run-{number}", plot)) for number, plot in enumerate(plots)]
    path = folder / "report.html"
    write_text(path, page(records))
    return path


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())
def test_pages_open_from_disk_without_error_or_request(plot: Plot, browser: Browser, tmp_path: Path) -> None:
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, plot))
    browser.draw_all()
    assert browser.complaints() == []
    assert browser.requests() == []
    count = browser.driver.execute_script("return document.querySelectorAll('.plot[data-drawn] .main-svg').length")
    assert count > 0
    assert browser.driver.execute_script("return document.querySelectorAll('.plot.failed').length") == 0
    titles = [one.text for one in browser.driver.find_elements("css selector", "h2")]
    wanted = [
        "What came out",
        "Groups",
        *(["Training", "Classes", "Moves"] if plot.rounds else []),
        "What left each site",
        "Costs",
        "Incidents",
    ]
    assert titles == [*wanted, "Settings"]


def test_nothing_overflows_a_phone_and_drawings_follow_the_theme(browser: Browser, tmp_path: Path) -> None:
    path = page_of(tmp_path, Plot(trouble=True), Plot(method="fedavg"))
    for dark in (False, True):
        browser.use(PHONE, dark=dark)
        browser.open(path)
        browser.draw_all()
        width = browser.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE[0]
        wide = browser.driver.execute_script(
            "return [...document.querySelectorAll('.plot svg')].filter(s => s.clientWidth > innerWidth).length"
        )
        assert wide == 0
        grounds = browser.driver.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            "document.getElementById('map').layout.paper_bgcolor]"
        )
        assert grounds == (["rgb(20, 23, 28)", "#14171c"] if dark else ["rgb(255, 255, 255)", "#ffffff"])
    # The theme may change while the page is open.
    browser.use(PHONE, dark=False)
    browser.wait("return document.getElementById('map').layout.paper_bgcolor === '#ffffff'")
    assert browser.complaints() == []


def test_pointing_at_a_site_names_it(browser: Browser, tmp_path: Path) -> None:
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, Plot()))
    browser.draw_all()
    browser.driver.execute_script(
        "document.getElementById('map').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    point(browser, "#map .scatterlayer .point")
    browser.wait("return /group \\d/.test(document.querySelector('#map .hoverlayer').textContent)")
    browser.driver.execute_script(
        "document.getElementById('distances').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    point(browser, "#distances .heatmaplayer image, #distances .hm image")
    told = browser.wait("const t = document.getElementById('tip'); return !t.hidden && t.textContent")
    assert re.fullmatch(r"\d{3} and \d{3}: distance [\d.e-]+", told)


def point(browser: Browser, selector: str) -> None:
    """Move the mouse onto an element, off its middle."""
    x, y = browser.driver.execute_script(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [b.x + b.width * 0.62, b.y + b.height * 0.4]",
        selector,
    )
    for step in (3, 0):
        browser.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y + step)
        time.sleep(0.1)


def download(browser: Browser, name: str) -> list[list[str]]:
    path = browser.downloads / f"{name}.csv"
    path.unlink(missing_ok=True)
    # A real click: of a script's own, a browser lets only ten through.
    button = browser.driver.find_element("css selector", f"button[data-csv='{name}']")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    end = time.monotonic() + 30
    # The browser makes the file before it fills it.
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < end, f"{name}.csv did not arrive"
        time.sleep(0.05)
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))


def test_every_figure_gives_its_data(browser: Browser, tmp_path: Path) -> None:
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, Plot(trouble=True), Plot(method="fedavg")))
    record = read_run(tmp_path / "run-0")
    names = [one.get_attribute("data-csv") for one in browser.driver.find_elements("css selector", "button[data-csv]")]
    assert len(names) == len(set(names)) >= 11
    tables = {name: download(browser, name) for name in names}
    for name, rows in tables.items():
        assert len(rows) > 1, name
        assert all(len(row) == len(rows[0]) for row in rows), name
    # The distances are those of the run, in the order that the heatmap has them.
    assert record.grouping is not None
    assert record.distance is not None
    head, *rows = tables["distances"]
    order = [record.grouping.sites.index(site) for site in head[1:]]
    found = np.array([[float(cell) for cell in row[1:]] for row in rows])
    np.testing.assert_allclose(found, record.distance[np.ix_(order, order)], rtol=1e-3)
    assert [row[0] for row in rows] == head[1:]
    assert record.last is not None
    sites = {row[0]: float(row[3]) for row in tables["sites"][1:]}
    expected = {site: metrics.accuracy for site, metrics in record.last.sites.items()}
    assert sites == pytest.approx(expected, rel=1e-5)


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    names = (EVIL, "=1+1", "<b>c", "d", "e", "f")
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, Plot(sites=6, kinds=2, trouble=True, names=names, reason=EVIL)))
    browser.draw_all()
    assert browser.complaints() == []
    assert browser.driver.execute_script("return document.querySelectorAll('img, b b').length") == 0
    assert EVIL in browser.driver.find_element("id", "groups-section").text
    rows = download(browser, "map")
    # A spreadsheet must not compute what a site is called.
    assert {row[0] for row in rows[1:]} == {EVIL, "'=1+1", "<b>c", "d", "e", "f"}


def test_tables_sort_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, Plot()))
    first = "document.querySelector('#groups-section table')"
    column = f"[...{first}.querySelectorAll('tbody tr')].map(r => Number(r.children[2].dataset.value))"
    button = browser.driver.find_elements("css selector", "#groups-section th button")[2]
    for sign, name in ((1, "ascending"), (-1, "descending")):
        button.send_keys("\ue007")
        values = browser.driver.execute_script(f"return {column}")
        assert values == sorted(values, key=lambda value: sign * value)
        assert button.find_element("xpath", "..").get_attribute("aria-sort") == name


def test_everything_has_a_name_and_can_be_reached(browser: Browser, tmp_path: Path) -> None:
    browser.use(DESKTOP)
    browser.open(page_of(tmp_path, Plot(trouble=True)))
    browser.draw_all()
    nameless = browser.driver.execute_script(
        "return [...document.querySelectorAll('.plot, button, [role=region], nav')].filter("
        "e => !(e.getAttribute('aria-label') || e.textContent.trim())).length"
    )
    assert nameless == 0
    assert browser.driver.execute_script("return document.documentElement.lang") == "en"
    levels = [int(one.tag_name[1]) for one in browser.driver.find_elements("css selector", "h1, h2, h3")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    small = browser.driver.execute_script(
        "return [...document.querySelectorAll('button[data-csv]')].filter("
        "b => b.getBoundingClientRect().height < 24).length"
    )
    assert small == 0
