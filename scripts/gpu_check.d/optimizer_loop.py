"""A PyTorch loop with transload.AdamW beside the same loop without an optimizer: optimizer_loop.py --json FILE.

The bound of a step is forward and backward alone, and then what the optimizer's step cannot do without: every
gradient to the host and every weight back once (the links' rates are measured here with pinned copies), and the
state's planes through the host's memory once each way (26 bytes a parameter; the rate is that of a copy). They may
overlap one another, but not the passes: a step begins when backward has ended. Where the optimizer keeps the state
elsewhere the bound is stated all the same, and may then be beaten."""
import argparse
import json
import statistics
import time

import torch

HYPER = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
BYTES_IN_HOST_MEMORY = 26


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Loop:
    def __init__(self, arguments):
        torch.manual_seed(1)
        self.device = torch.device(arguments.device)
        blocks = [Block(arguments.width) for _ in range(arguments.blocks)]
        self.model = torch.nn.Sequential(*blocks).to(self.device, torch.bfloat16)
        self.x = torch.randn(arguments.tokens, arguments.width, device=self.device, dtype=torch.bfloat16)
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def finish(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def passes(self):
        self.model.zero_grad(set_to_none=True)
        loss = (self.model(self.x) - 1).float().square().mean()
        loss.backward()
        return loss.detach()

    def seconds(self, step, steps):
        """The median, after two that do not count; and what the steps returned."""
        times, values = [], []
        for i in range(steps + 2):
            self.finish()
            begin = time.perf_counter()
            value = step()
            self.finish()
            if i >= 2:
                times.append(time.perf_counter() - begin)
            values.append(float(value))
        return statistics.median(times), values


def copy_rate(source, target, finish):
    times = []
    for i in range(6):
        finish()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        finish()
        times.append(time.perf_counter() - begin)
    return source.nbytes / statistics.median(times[1:])


def rates(loop):
    count = 1 << (28 if loop.device.type == "cuda" else 20)
    first, second = torch.zeros(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    found = {"host_memory": 2 * copy_rate(first, second, loop.finish)}
    if loop.device.type == "cuda":
        pinned, there = first.pin_memory(), torch.zeros(count, dtype=torch.uint8, device=loop.device)
        found["device_to_host"] = copy_rate(there, pinned, loop.finish)
        found["host_to_device"] = copy_rate(pinned, there, loop.finish)
    return found


def bound(passes_s, parameters, found):
    """(seconds, what binds)."""
    least = {"host memory": BYTES_IN_HOST_MEMORY * parameters / found["host_memory"]}
    if "device_to_host" in found:
        least["the link to the host"] = 2 * parameters / found["device_to_host"]
        least["the link to the device"] = 2 * parameters / found["host_to_device"]
    name, update = max(least.items(), key=lambda item: item[1])
    return passes_s + update, "computation" if passes_s > update else name


def make_optimizer(loop, arguments):
    """(optimizer, None), or (None, why it is refused)."""
    import transload
    where = {} if loop.device.type == "cpu" else {"device_memory": arguments.device_memory}
    try:
        optimizer = transload.AdamW(loop.model.parameters(), **HYPER, host_memory=arguments.host_memory, **where)
        loop.passes()
        optimizer.step()
        return optimizer, None
    except (TypeError, ValueError, MemoryError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {error}"


def measure(loop, arguments, found):
    passes_s, _ = loop.seconds(loop.passes, arguments.steps)
    found.update(parameters=loop.parameters, passes_s=passes_s, rates=rates(loop))
    if loop.device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    optimizer, refused = make_optimizer(loop, arguments)
    if refused:
        found["refused"] = refused
        return

    def step():
        loss = loop.passes()
        optimizer.step()
        return loss

    found["step_s"], found["losses"] = loop.seconds(step, arguments.steps)
    found["lower_bound_s"], found["binds"] = bound(passes_s, loop.parameters, found["rates"])
    found["fraction"] = found["lower_bound_s"] / found["step_s"]
    found["report"] = {key: value for key, value in optimizer.report().items() if isinstance(value, (int, float, str))}
    if not found["losses"][-1] < found["losses"][0]:
        raise SystemExit(f"the loss does not fall: {found['losses']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--device", default="cuda")
    for name in ("blocks", "width", "tokens", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--host-memory", default=None)
    parser.add_argument("--device-memory", default="2GiB")
    arguments = parser.parse_args()
    found = {}
    try:
        measure(Loop(arguments), arguments, found)
    finally:
        with open(arguments.json, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
