"""A picture of a page for these documents: `python -m docs.picture PAGE OUT.png [--phone] [--dark]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.support.browser import PHONE, chromium

GAP = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--phone", action="store_true", help="the width of a phone; what follows stands in columns")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1120)
    parser.add_argument("--top", type=int, default=0, help="pixels from the top of the page")
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--columns", type=int, default=1)
    parser.add_argument("--figure", help="only this figure, by its name")
    options = parser.parse_args()
    width = PHONE[0] if options.phone else options.width
    with TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        browser.use((width, 900), dark=options.dark)
        browser.open(options.page)
        browser.draw_all()
        whole = Path(folder) / "whole.png"
        browser.picture(whole, f"figure:has(#{options.figure})" if options.figure else "body")
        image = Image.open(whole).convert("RGB")
    if options.figure:
        options.height = image.height
    sheet = Image.new("RGB", ((image.width + GAP) * options.columns - GAP, options.height), "#808080")
    for column in range(options.columns):
        top = options.top + column * options.height
        sheet.paste(image.crop((0, top, image.width, top + options.height)), (column * (image.width + GAP), 0))
    sheet.save(options.out, optimize=True)


if __name__ == "__main__":
    main()
