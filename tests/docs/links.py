#!/usr/bin/env python3
"""Every link of the repository's pages to a file or a heading of it leads somewhere. Exits with 1 and a list of those that do not.

    tests/docs/links.py [--root FOLDER]
"""

import argparse
import pathlib
import re
import sys


def prose(path):
    """A page's text without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)


def anchor(heading):
    """As GitHub makes it: what a heading shows, in small letters, without punctuation, blanks as hyphens."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def anchors(path):
    found, counts = set(), {}
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.M):
        name = anchor(heading)
        found.add(f"{name}-{counts[name]}" if name in counts else name)
        counts[name] = counts.get(name, 0) + 1
    return found


def broken(root):
    pages = [page for pattern in ("*.md", "docs/**/*.md", "bench/**/*.md", "examples/**/*.md") for page in root.glob(pattern)]
    if not pages:
        yield f"{root}: no pages"
    for page in sorted(pages):
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if "://" in link or link.startswith("mailto:"):
                continue
            file, _, place = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists():
                yield f"{page.relative_to(root)}: {link}: there is no such file"
            elif place and target.suffix == ".md" and place not in anchors(target):
                yield f"{page.relative_to(root)}: {link}: the page has no such heading"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent.parent)
    found = list(broken(parser.parse_args().root.resolve()))
    print("\n".join(found) if found else "all links lead somewhere")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
