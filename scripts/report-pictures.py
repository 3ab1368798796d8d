"""Pictures for the README: report.html of run folders, reduced to the verdict, the times and the timeline.

python scripts/report-pictures.py RUN_FOLDER... -o docs/images     writes docs/images/report-FOLDER.png for each folder
python scripts/report-pictures.py RUN_FOLDER... --modules          writes modules-FOLDER.png: the icicle, with a module
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "profiling"), str(ROOT / "tests")]

SHOWN = """
header .kicker, #verdict .columns, #verdict > p:last-child, #schedule, #times .muted, #timeline > .muted, #lanes-help,
#split, #modules, #tables, #launches, #roofline, #steps, #regions, #chains, #environment, #next,
footer { display: none }
body { padding: 16px 20px 4px } section { margin-top: 12px; padding-top: 10px }
"""


def main() -> None:
    """Take one picture of each folder's report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--modules", action="store_true")
    asked = parser.parse_args()
    from browser import launched

    from proftrack.report import html
    from proftrack.report.events import details
    from proftrack.report.pages.full import report
    from proftrack.store.references import References

    asked.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        page = browser.new_context(
            viewport={"width": 680, "height": 600}, device_scale_factor=1.75, bypass_csp=True
        ).new_page()
        for kept in asked.folders:
            found = References().read(str(kept))
            target = Path(folder) / "report.html"
            target.write_text(
                html.render(report(found.record, details(found.tables, found.record.kernels))), encoding="utf-8"
            )
            page.goto(target.as_uri())
            if asked.modules:
                picture_of_modules(page, asked.output / f"modules-{kept.name}.png")
                continue
            page.add_style_tag(content=SHOWN)
            page.click("[data-do=all]")
            page.mouse.move(0, 0)
            page.screenshot(path=str(asked.output / f"report-{kept.name}.png"), full_page=True)


ALONE = """
header, footer, main > section:not(#modules), #modules > section, #icicle-help { display: none }
body { padding: 4px 12px } section { margin: 0; padding: 0; border: 0 }
"""


def picture_of_modules(page: Any, path: Path) -> None:
    """The icicle with the first module of the first block chosen, in the backward pass if there is one."""
    page.set_viewport_size({"width": 820, "height": 300})
    page.add_style_tag(content=ALONE)
    page.focus("#icicle-picture")
    for key in ("ArrowDown", "ArrowRight", *["ArrowDown"] * 4):
        page.press("#icicle-picture", key)
    page.screenshot(path=str(path), full_page=True)


if __name__ == "__main__":
    main()
