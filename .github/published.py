#!/usr/bin/env python3
"""Before a release is built: makes links work outside of the repository.

    python3 .github/published.py REPOSITORY REF

REPOSITORY is the address of its page, REF the tag. README.md gets absolute links in place of relative ones, and
pyproject.toml gets project.urls. So the address stands nowhere in the sources, and a fork links to itself. Fails if the
tag is not "v" and the version, if CHANGELOG.md or CITATION.cff has no such version with a date, or if a link leads
nowhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#]+)(#[^)]*)?\)")
PAGES = {
    "Homepage": "",
    "Documentation": "/blob/{ref}/docs/index.md",
    "Changelog": "/blob/{ref}/CHANGELOG.md",
    "Issues": "/issues",
    "Source": "/tree/{ref}",
}


def absolute(text: str, repository: str, ref: str, root: Path) -> str:
    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not (root / target).exists():
            raise SystemExit(f"README.md links to {target}, which is not there")
        kind = "raw" if image else "tree" if (root / target).is_dir() else "blob"
        return f"{image}[{words}]({repository}/{kind}/{ref}/{target}{anchor})"

    return LINK.sub(link, text)


def require_version(ref: str, root: Path) -> None:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
    version = found[1] if found else ""
    if ref != f"v{version}":
        raise SystemExit(f"the tag is {ref}, but pyproject.toml has version {version}")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", changes, re.MULTILINE)
    if dated is None:
        raise SystemExit(f"CHANGELOG.md has no '## [{version}] - DATE'")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    for line in (f"version: {version}", f"date-released: {dated[1]}"):
        if line not in citation.splitlines():
            raise SystemExit(f"CITATION.cff has no line '{line}'")


def main(repository: str, ref: str, root: Path) -> None:
    require_version(ref, root)
    readme, project = root / "README.md", root / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), repository, ref, root), encoding="utf-8")
    urls = "".join(f'{name} = "{repository}{page.format(ref=ref)}"\n' for name, page in PAGES.items())
    before, table, after = project.read_text(encoding="utf-8").partition("[project.optional-dependencies]\n")
    project.write_text(f"{before}[project.urls]\n{urls}\n{table}{after}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1].rstrip("/"), sys.argv[2], Path(__file__).parents[1])
