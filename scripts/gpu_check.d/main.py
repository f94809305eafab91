"""gpu_check's parts one after the other, each with a time limit and a JSON file of its own. scripts/gpu_check runs it.

Exit codes: 0 all is well (parts that have nothing to run on are skipped); 1 a part failed, was refused or ran out of
time; 2 wrong input, or a machine on which nothing can run; 130 interrupted."""
import argparse
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback

from part import Failed, OutOfTime, Part, Refused, Skipped
from parts import PARTS
from setup import GIB, Setup, available_memory, cuda_tool, driver_architecture, free_disk

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOTE = "over the stand-in: figures mean nothing"


def parse():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(prog="gpu_check", description="What only a GPU can tell. Parts: " +
                                     ", ".join(PARTS))
    parser.add_argument("--only", metavar="PART,…", help="these parts, in this order")
    parser.add_argument("--out", metavar="FOLDER", type=pathlib.Path, default=root / "build" / "gpu_check",
                        help="of the results, and of what the parts need on disk")
    parser.add_argument("--build", metavar="FOLDER", type=pathlib.Path, help="of the build")
    parser.add_argument("--minutes", type=float,
                        help="for all parts; each one's limit grows with it (8; 120 over the stand-in)")
    parser.add_argument("--architecture", metavar="90", help="to compile for where no driver tells")
    parser.add_argument("--steps", metavar="N", type=int, help="of each training run (5)")
    parser.add_argument("--stand-in", action="store_true", help="tiny sizes without a GPU: shows that this works")
    arguments = parser.parse_args()
    arguments.minutes = arguments.minutes or (120 if arguments.stand_in else 8)
    arguments.only = arguments.only.split(",") if arguments.only else list(PARTS)
    for name in arguments.only:
        if name not in PARTS:
            parser.error(f"there is no part {name}; there are {', '.join(PARTS)}")
    build = arguments.build or root / "build" / ("gpu_stand_in" if arguments.stand_in else "gpu")
    return arguments, Setup(root, arguments.out.resolve(), build.resolve(), arguments.stand_in, arguments.architecture,
                            arguments.steps)


def wrong(text):
    print(f"gpu_check: {text}", file=sys.stderr)
    return 2


def lacking(setup, only):
    """Why nothing can run here, or None; finds the architecture."""
    if not setup.stand_in:
        found, why = driver_architecture()
        if found is None and (only != ["build"] or setup.architecture is None):
            return f"there is no GPU that can be used: {why}"
        setup.architecture = setup.architecture or found
    if "build" not in only:
        return None
    if not setup.stand_in and cuda_tool("nvcc") is None:
        return "nvcc is not found (CUDA's compiler; PATH or CUDA_HOME tell where it is)"
    return next((f"{tool} is not found" for tool in ("cmake", "ninja", "g++") if shutil.which(tool) is None), None)


def check_needs(kind, setup):
    if setup.stand_in:
        return
    for what, needed, there in (("memory", kind.memory_gib, available_memory()),
                                ("disk", kind.disk_gib, free_disk(setup.out))):
        if there < needed * GIB:
            raise Refused(f"needs {needed} GiB of {what}; {there / GIB:.1f} GiB are free")


def run_part(name, setup, limit_s):
    """Runs the part, writes its JSON and a line; its outcome."""
    kind, outcome, reason = PARTS[name], "done", None
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=setup.out) as work:
        part = Part(name, setup, limit_s, work)
        try:
            if limit_s <= 0:
                raise OutOfTime("nothing of the whole check's time was left")
            check_needs(kind, setup)
            kind.run(part)
        except Skipped as skipped:
            outcome, reason = "skipped", str(skipped)
        except Refused as refused:
            outcome, reason = "refused", str(refused)
        except OutOfTime as late:
            outcome, reason = "out of time", str(late)
        except Failed as failed:
            outcome, reason = "failed", str(failed)
        except Exception as error:  # a bug of the part's must not stop the others
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
            with part.log_path.open("a") as log:
                traceback.print_exc(file=log)
    result = {"part": name, "ok": outcome in ("done", "skipped"), "outcome": outcome, "reason": reason,
              "seconds": round(part.seconds(), 2), "limit_s": round(limit_s, 1), "found": part.found}
    if setup.stand_in:
        result["note"] = NOTE
    (setup.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    told = "; ".join([*([reason] if reason else []), *([] if setup.stand_in else part.highlights)])
    print(f"gpu_check: {name}: {outcome} in {part.seconds():.1f} s{': ' if told else ''}{told}", flush=True)
    return outcome


def run_all(arguments, setup):
    scale = arguments.minutes / 8
    end = time.monotonic() + arguments.minutes * 60
    bad = []
    for name in arguments.only:
        outcome = run_part(name, setup, min(PARTS[name].limit_s * scale, end - time.monotonic()))
        if outcome not in ("done", "skipped"):
            bad.append(f"{name} ({outcome})")
    if setup.stand_in:
        print(f"gpu_check: {NOTE}")
    if bad:
        print(f"gpu_check: not well: {', '.join(bad)}; {setup.out} has the logs", file=sys.stderr)
    return 1 if bad else 0


def interrupt(_number, _frame):
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # the next one must not end the tidying up
    raise KeyboardInterrupt


def main():
    arguments, setup = parse()
    if reason := lacking(setup, arguments.only):
        return wrong(reason)
    setup.out.mkdir(parents=True, exist_ok=True)
    for number in STOPS:
        signal.signal(number, interrupt)
    try:
        return run_all(arguments, setup)
    except KeyboardInterrupt:
        print("gpu_check: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
