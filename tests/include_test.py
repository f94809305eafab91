"""Refuses an include that goes against the arrows of the rooms (docs/design.md)."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
ROOMS = {"base": "src/base", "chunk": "src/chunk", "trace": "src/trace", "plan": "src/plan", "engine": "src/engine",
         "optim": "src/optim", "comm": "src/comm", "train": "src/train", "report": "src/report", "cli": "src/cli",
         "offload": "offload", "kernels": "kernels"}
SEES = {
    "base": set(), "chunk": {"base"}, "trace": {"base"}, "plan": {"base"}, "offload": {"base"}, "kernels": {"base"},
    "report": {"base"}, "comm": {"base", "offload"},
    "engine": {"base", "chunk", "trace", "plan", "offload", "comm"},
}
SEES["optim"] = SEES["engine"] | {"engine", "kernels"}
SEES["train"] = SEES["optim"] | {"optim"}
SEES["cli"] = set(ROOMS) - {"cli"}


def room_of_include(path):
    first = path.split("/")[0]
    return first if first in ROOMS else None


bad = []
for room, folder in ROOMS.items():
    for file in sorted((root / folder).rglob("*")):
        if file.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not found:
                continue
            target = room_of_include(found.group(1))
            if target and target != room and target not in SEES[room]:
                bad.append(f"{file.relative_to(root)}:{number}: {room} may not see {target}")
print("\n".join(bad) if bad else "includes follow the arrows")
sys.exit(1 if bad else 0)
