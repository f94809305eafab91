"""Disks that fill up, folders that are not there, processes that die, fork: nothing silent, nothing left over."""
import copy
import os
import pickle
import signal
import threading

import pytest
import torch

import transload
from support import (HYPER, assert_same, copies, give_gradients, on_nvme, parameters, run_python, small_budget,
                     start_python, steps_of, subfolders, train)

FULL_IN_THE_MIDDLE = """
    import os, resource, signal, sys
    import torch, transload
    from support import *

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder, checkpoint = sys.argv[1:]
    names = [f"layer{i}.weight" for i in range(10)]
    params = parameters(*[(100_000,)] * 10)
    budget = small_budget(params, folder)
    opt = transload.AdamW(list(zip(names, params)), **HYPER, nvme=folder, host_memory=budget)
    train(opt, params, 2)
    opt.save(checkpoint)
    weights = copies(params)
    largest = max(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files)
    assert largest > 1_000_000, largest
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest * FRACTION) // 4096 * 4096, hard))
    message = None
    for step in range(2, 6):
        before = copies(params)
        give_gradients(params, step)
        try:
            opt.step()
        except (OSError, RuntimeError) as error:
            message = str(error)
            kind = type(error)
            break
    assert message, "the disk was full and nothing was said"
    print("message:", message)
    changed = [n for n, p, q in zip(names, params, before) if not torch.equal(p, q)]
    whole = [n for n, p, q in zip(names, params, before) if bool((p != q).all())]
    print("changed:", changed, "whole:", whole)
    if changed:
        assert len(changed) < len(names) or len(whole) < len(names), "the step was complete and yet failed"
        assert all(n in message for n in whole), "an updated parameter is not named"
    else:
        print("nothing was updated")

    def refused(call):
        try:
            call()
        except RuntimeError as error:
            return "load" in str(error)
        return False

    after = copies(params)
    give_gradients(params, 9)
    assert refused(opt.step), "stepped on after a failure"
    assert_same(params, after)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused(opt.step), "stepped on after a failure, once there was room"
    assert refused(opt.state_dict), "a state that is half one step and half another was given out"
    assert refused(lambda: opt.save(checkpoint + ".2")) and not os.path.exists(checkpoint + ".2")
    with torch.no_grad():
        for p, w in zip(params, weights):
            p.copy_(w)
    opt.load(checkpoint)
    train(opt, params, 2, first=2)
    control = parameters(*[(100_000,)] * 10)
    train(transload.AdamW(control, **HYPER), control, 4)
    assert_same(params, control)
    print("recovered")
"""


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_disk_full_in_the_middle_of_a_step(nvme, tmp_path, fraction):
    done = run_python(FULL_IN_THE_MIDDLE.replace("FRACTION", str(fraction)), nvme, tmp_path / "checkpoint")
    assert done.returncode == 0 and "recovered" in done.stdout, done.stdout + done.stderr
    assert "nothing was updated" not in done.stdout or fraction < 0.5, "the failure did not come in the middle"
    assert subfolders(nvme) == []


def test_disk_full_at_the_first_step(nvme):
    done = run_python("""
        import resource, signal, sys
        import torch, transload
        from support import *
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        params = parameters((1_000_000,))
        before = copies(params)
        budget = small_budget(parameters((1_000_000,)), sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        try:
            opt = transload.AdamW(params, **HYPER, nvme=sys.argv[1], host_memory=budget)
            train(opt, params, 1)
        except OSError as error:
            print("refused", error.errno, error)
        assert_same(params, before)
        print("unchanged")
    """, nvme)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("refused 2") and "unchanged" in done.stdout, done.stdout + done.stderr
    assert str(nvme) in done.stdout
    assert subfolders(nvme) == []


def mount_tiny(folder):
    """A file system of 4 MiB, where this is permitted."""
    import subprocess
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no permission to mount a small file system")


def test_a_file_system_that_is_too_small(nvme):
    import subprocess
    mount_tiny(nvme)
    try:
        params = parameters((1_000_000,))
        before = copies(params)
        with pytest.raises(OSError) as refused:
            train(transload.AdamW(params, **HYPER, nvme=str(nvme), host_memory="2MiB"), params, 1)
        assert str(nvme) in str(refused.value)
        assert_same(params, before)
        del refused
        assert subfolders(nvme) == []
    finally:
        subprocess.run(["umount", "-l", nvme], check=True)


def first_step(nvme):
    params = parameters((100_000,))
    train(transload.AdamW(params, **HYPER, nvme=str(nvme), host_memory="512KiB"), params, 1)


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        first_step(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotADirectoryError, match="file"):
        first_step(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_folder_that_cannot_be_written(tmp_path):
    if os.geteuid() == 0:
        if not os.path.isdir("/sys/kernel"):
            pytest.skip("root may write everywhere")
        folder = "/sys/kernel"  # where not even root can make a folder
    else:
        folder = str(tmp_path / "read-only")
        os.mkdir(folder, 0o500)
    with pytest.raises(OSError, match=folder):
        first_step(folder)


def test_the_folder_is_refused_at_construction(tmp_path):
    """Hours into a job is too late."""
    with pytest.raises(OSError):
        transload.AdamW(parameters((4,)), nvme=str(tmp_path / "missing"), host_memory="1MiB")


LIVING = """
    import sys
    import torch, transload
    from support import *
    params = parameters((300_000,))
    opt = on_nvme(params, sys.argv[1])
    train(opt, params, 2)
    print("ready", flush=True)
    sys.stdin.readline()
    train(opt, params, 2, first=2)
    control = parameters((300_000,))
    train(transload.AdamW(control, **HYPER), control, 4)
    assert_same(params, control)
    print("went on", flush=True)
"""


def ready(process):
    line = process.stdout.readline()
    assert line.strip() == "ready", line + process.stderr.read()


def test_leftovers_of_a_dead_process_are_reclaimed(nvme):
    process = start_python(LIVING, nvme)
    ready(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = subfolders(nvme)
    assert left, "nothing was left over: the test shows nothing"
    params = parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 1)
    assert not set(left) & set(subfolders(nvme))
    del opt


def test_those_of_a_living_process_are_not_touched(nvme):
    process = start_python(LIVING, nvme)
    ready(process)
    theirs = subfolders(nvme)
    params = parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 2)
    assert set(theirs) < set(subfolders(nvme))
    del opt
    assert subfolders(nvme) == theirs
    out, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0 and "went on" in out, out + err
    assert subfolders(nvme) == []


def test_what_others_keep_in_the_folder_is_not_touched(nvme):
    (nvme / "data.bin").write_bytes(b"x" * 100)
    (nvme / "folder").mkdir()
    (nvme / "folder" / "more").write_text("y")
    params = parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 1)
    assert len(subfolders(nvme)) == 3
    del opt
    assert subfolders(nvme) == ["data.bin", "folder"]
    assert (nvme / "folder" / "more").read_text() == "y"


def test_the_subfolder_goes_with_the_optimizer(nvme):
    import gc
    params = parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 1)
    assert len(subfolders(nvme)) == 1
    del opt
    gc.collect()
    assert subfolders(nvme) == []


@pytest.mark.parametrize("how, status", [("pass", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("opt.own = opt", 0),
                                         ("import builtins; builtins.kept = opt", 0)])
def test_at_interpreter_exit(nvme, how, status):
    """The subfolder is gone, and the first error is all that is said."""
    done = run_python(f"""
        import sys
        import torch, transload
        from support import *
        params = parameters((300_000,), (100,))
        opt = on_nvme(params, sys.argv[1], 1 << 20)
        train(opt, params, 2)
        shown = opt.state[params[1]]
        saved = opt.state_dict()
        {how}
    """, nvme)
    assert done.returncode == status, done.stderr
    assert subfolders(nvme) == []
    if how == "1 / 0":
        assert done.stderr.strip().endswith("ZeroDivisionError: division by zero"), done.stderr
        assert done.stderr.count("Traceback") == 1
    else:
        assert done.stderr == "", done.stderr
    assert done.stdout == ""


def test_interrupted_by_the_keyboard(nvme):
    process = start_python("""
        import sys
        import torch, transload
        from support import *
        params = parameters((300_000,))
        opt = on_nvme(params, sys.argv[1])
        train(opt, params, 2)
        print("ready", flush=True)
        while True:
            train(opt, params, 1)
    """, nvme)
    ready(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert err.strip().splitlines()[-1].startswith("KeyboardInterrupt"), err
    assert subfolders(nvme) == []


FORK = """
    import os, sys, warnings
    import torch, transload
    from support import *
    warnings.simplefilter("ignore")
    where = sys.argv[1]
    params = parameters((300_000,))
    opt = on_nvme(params, where) if where else transload.AdamW(params, **HYPER)
    train(opt, params, 2)
    folders = subfolders(where) if where else []
    give_gradients(params, 9)  # before the fork: a child has none of the threads that torch computes with
    child = os.fork()
    if child == 0:
        status = 7
        try:
            CHILD
            status = 0
        except RuntimeError as error:
            status = 3 if "fork" in str(error) else 8
        finally:
            END
    _, result = os.waitpid(child, 0)
    print("child", os.waitstatus_to_exitcode(result))
    assert not where or subfolders(where) == folders, "the child removed the folder"
    train(opt, params, 2, first=2)
    control = parameters((300_000,))
    train(transload.AdamW(control, **HYPER), control, 4)
    assert_same(params, control)
    print("went on")
"""


def forked(where, child, end="os._exit(status)"):
    done = run_python(FORK.replace("CHILD", child).replace("END", end), where)
    assert done.returncode == 0 and done.stdout.endswith("went on\n"), done.stdout + done.stderr
    return int(done.stdout.split()[1])


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_a_step_after_fork_is_refused_or_safe(nvme, place):
    status = forked(nvme if place == "nvme" else "", "opt.step()")
    assert status in (0, 3), "neither refused by name nor done"


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_a_forked_child_that_exits_in_the_ordinary_way_takes_nothing_along(nvme, place):
    """As the workers of a DataLoader do."""
    assert forked(nvme if place == "nvme" else "", "del opt", "sys.exit(status)") == 0


def test_data_loader_workers(nvme):
    done = run_python("""
        import sys
        import torch, transload
        from support import *

        class Data(torch.utils.data.Dataset):
            def __len__(self): return 16
            def __getitem__(self, i): return torch.full((4,), float(i))

        if __name__ == "__main__":
            params = parameters((300_000,))
            opt = on_nvme(params, sys.argv[1])
            loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork")
            step = 0
            for epoch in range(2):
                for batch in loader:
                    train(opt, params, 1, first=step)
                    step += 1
            control = parameters((300_000,))
            train(transload.AdamW(control, **HYPER), control, step)
            assert_same(params, control)
            print("done", step)
    """, nvme)
    assert done.stdout == "done 8\n", done.stdout + done.stderr
    assert subfolders(nvme) == []


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
                         ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_a_copy_is_independent_or_refused(duplicate, place, nvme):
    params = parameters((300_000,))
    opt = on_nvme(params, nvme) if place == "nvme" else transload.AdamW(params, **HYPER)
    train(opt, params, 2)
    kept = copies(params)
    try:
        twin, = duplicate([opt])
    except TypeError as error:
        assert "AdamW" in str(error) and ("state_dict" in str(error) or "save" in str(error))
    else:
        theirs = twin.param_groups[0]["params"]
        assert theirs[0] is not params[0]
        train(twin, theirs, 2, first=2)
        assert_same(params, kept)
        train(opt, params, 2, first=2)
        assert_same(params, theirs)
    train(opt, params, 1, first=4)


def test_model_and_optimizer_copied_together():
    """Lightning and schedulers deepcopy; parameters of the copy are those of the copied model, or a TypeError."""
    model = torch.nn.Linear(4, 4)
    opt = transload.AdamW(model.parameters(), **HYPER)
    try:
        twin_model, twin = copy.deepcopy((model, opt))
    except TypeError:
        return
    assert twin.param_groups[0]["params"][0] is twin_model.weight


def test_two_optimizers_in_one_folder(nvme):
    first, second = parameters((300_000,)), parameters((300_000,), seed=4)
    a, b = on_nvme(first, nvme), on_nvme(second, nvme)
    for step in range(3):
        train(a, first, 1, first=step)
        train(b, second, 1, first=step)
    control = parameters((300_000,), seed=4)
    train(transload.AdamW(control, **HYPER), control, 3)
    del a
    assert_same(second, control)
    train(b, second, 1, first=3)


def test_the_folder_disappears(nvme):
    """Somebody cleans up: files stay open or the step says so; weights are never wrong in silence."""
    import shutil
    params, control = parameters((300_000,)), parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 2)
    shutil.rmtree(nvme / subfolders(nvme)[0])
    try:
        train(opt, params, 2, first=2)
    except (OSError, RuntimeError):
        return
    train(transload.AdamW(control, **HYPER), control, 4)
    assert_same(params, control)


def test_a_damaged_block_is_named_and_not_used(nvme):
    params = parameters((300_000,))
    opt = train(on_nvme(params, nvme), params, 2)
    before = copies(params)
    paths = [os.path.join(at, f) for at, _, files in os.walk(nvme) for f in files]
    damaged = 0
    for path in paths:
        size = os.path.getsize(path)
        if size < 100_000:
            continue
        with open(path, "r+b") as file:
            for at in range(0, size, 4096):
                file.seek(at)
                file.write(b"\xa5" * 64)
        damaged += 1
    assert damaged
    give_gradients(params, 2)
    with pytest.raises((OSError, RuntimeError)):
        opt.step()
    finite = all(torch.isfinite(p).all() for p in params)
    moved = max((p - q).abs().max().item() for p, q in zip(params, before))
    assert finite and moved < 0.01


def test_the_record_is_written(tmp_path, nvme):
    import json
    params = parameters((300_000,))
    opt = on_nvme(params, nvme, record=str(tmp_path / "record.jsonl"))
    train(opt, params, 3)
    del opt
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert len(lines) > 1


def test_budget_of_the_smallest_kind_is_kept(nvme):
    from support import report
    params = parameters((300_000,), (1000,))
    budget = small_budget(params, nvme)
    opt = train(on_nvme(params, nvme, budget), params, 3)
    assert report(opt, "host_peak") <= budget == report(opt, "host_budget")


@pytest.mark.parametrize("torn", [False, True])
def test_a_load_that_fails_is_not_followed_by_steps_from_nothing(nvme, torn):
    """The disk was gone when the state should come back: neither the old state is there nor the loaded one."""
    params = parameters((300_000,), (100,))
    opt = on_nvme(params, nvme, 1 << 20)
    train(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    if torn:
        opt._offload.fail("A step failed.")
    larger = torch.nn.Parameter(torch.zeros(1000))
    opt.add_param_group({"params": [larger]})
    saved["param_groups"].append({**saved["param_groups"][0], "params": [2]})
    nvme.rename(nvme.with_name("gone"))
    with pytest.raises((OSError, ValueError)):
        opt.load_state_dict(saved)
    nvme.with_name("gone").rename(nvme)
    with pytest.raises(RuntimeError, match="load"):
        train(opt, params, 1, first=2)
    opt.load_state_dict(saved)
    train(opt, params, 1, first=2)
    assert steps_of(opt) == [3, 3]


def test_what_cannot_be_stepped_is_refused_before_a_load_changes_anything():
    params = parameters((30,))
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    saved = opt.state_dict()
    saved["param_groups"].append({**saved["param_groups"][0], "params": [1]})
    opt.add_param_group({"params": [torch.nn.Parameter(torch.empty(5, device="meta"))]})
    with pytest.raises(NotImplementedError, match="meta"):
        opt.load_state_dict(saved)
    assert int(opt.state[params[0]]["step"]) == 2


class InterruptedCore:
    """A core whose call of step ends with Ctrl-C, after it has done everything."""

    def __init__(self, core):
        self.core = core

    def __getattr__(self, name):
        return getattr(self.core, name)

    def step(self, *arguments):
        self.core.step(*arguments)
        raise KeyboardInterrupt


def interrupted(params):
    opt = transload.AdamW(params, **HYPER)
    give_gradients(params, 0)
    opt._offload.cover(opt.param_groups)
    opt._offload._core = InterruptedCore(opt._offload._core)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    opt._offload._core = opt._offload._core.core
    return opt


def test_an_interrupt_after_everything_was_written_leaves_a_whole_step():
    params, control = parameters((30,)), parameters((30,))
    opt = interrupted(params)
    assert steps_of(opt) == [1]
    train(opt, params, 1, first=1)
    train(transload.AdamW(control, **HYPER), control, 2)
    assert_same(params, control)


def test_an_interrupt_before_a_temporary_was_copied_back_is_a_step_that_failed():
    params = [torch.nn.Parameter(torch.ones(3, 4).t()), *parameters((30,))]
    opt = interrupted(params)
    for use in (opt.step, opt.state_dict):
        with pytest.raises(RuntimeError, match="until a load.*group 0 parameter 1"):
            use()


def test_a_checkpoint_from_another_thread_takes_turns_with_the_steps(nvme):
    params, control = parameters((300_000,), (1000,)), parameters((300_000,), (1000,))
    opt = on_nvme(params, nvme, 1 << 20)
    train(opt, params, 1)
    errors, ended = [], threading.Event()

    def checkpoints():
        try:
            while not ended.is_set():
                opt.state_dict()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=checkpoints)
    thread.start()
    train(opt, params, 5, first=1)
    ended.set()
    thread.join()
    assert not errors
    train(transload.AdamW(control, **HYPER), control, 6)
    assert_same(params, control)


def test_exit_while_a_thread_steps(nvme):
    done = run_python("""
        import sys, threading, time
        import torch, transload
        from support import *
        params = parameters((3_000_000,))
        opt = on_nvme(params, sys.argv[1], 4 << 20)
        train(opt, params, 1)
        def loop():
            while True:
                opt.step()
        threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.1)
    """, nvme)
    assert done.returncode == 0, done.stderr
    assert subfolders(nvme) == []
