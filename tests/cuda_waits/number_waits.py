#!/usr/bin/env python3
"""Copies of sources in which every wait has a number and can be left out: number_waits.py ROOT TO FILE...

A wait is a statement that waits for an event or for the end of a stream, of ours or of CUDA's. In the copies, under TO,
it stands behind `if (cuda_waits::keeps(NUMBER))`; all else is as it was, lines included. TO/sites.h lists the waits.
A file in which no wait is found is an error: this script would have gone blind."""

import pathlib
import re
import sys

WAIT = re.compile(
    r"(?<![\w.>\])])("
    r"(?:check\()?cuda(?:StreamWaitEvent|EventSynchronize|StreamSynchronize)\([^;]*;"
    r"|[A-Za-z_][\w.\[\]]*(?:->[\w.\[\]]+)*(?:\.|->)(?:wait|synchronize)\((?!lock\b)[^;{}]*\);)")


def numbered(root, name, sites):
    lines = (root / name).read_text().split("\n")
    before = len(sites)
    for at, line in enumerate(lines):
        if line.lstrip().startswith("//"):
            continue
        found = WAIT.search(line)
        if found is None:
            continue
        if WAIT.search(line, found.end()):
            sys.exit(f"{name}:{at + 1}: two waits in one line")
        lines[at] = line[:found.start()] + f"if (cuda_waits::keeps({len(sites)})) " + line[found.start():]
        sites.append((name, at + 1, found.group(1)))
    if len(sites) == before:
        sys.exit(f"{name}: no wait is found in it")
    return "#include \"cuda_waits/keeps.h\"\n#line 1\n" + "\n".join(lines)


def put(path, text):
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    root, to = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    sites = []
    for name in sys.argv[3:]:
        put(to / name, numbered(root, name, sites))
    rows = "".join('    {"%s", %d, "%s"},\n' % (name, line, text.replace('"', '\\"')) for name, line, text in sites)
    put(to / "sites.h", "#pragma once\n\n#include \"cuda_waits/keeps.h\"\n\nnamespace cuda_waits {\n"
        "inline constexpr Site kSites[] = {\n" + rows + "};\n}  // namespace cuda_waits\n")


main()
