"""A PyTorch loop with transload.AdamW beside the same loop without an optimizer: optimizer_loop.py --json FILE.

Twice: all of the state in host memory, and some of it in --device-memory. The bound of a step is forward and backward
alone, and then the longest of what the optimizer's step cannot do without: of state in host memory every gradient down
and every weight up once, and 26 bytes a parameter through the host's memory; of state on the device the same bytes
through its memory. Rates are measured here, of pinned copies and of copies within. These may overlap one another, but
not the passes: a step begins when backward has ended."""
import argparse
import json
import statistics
import time

import torch

HYPER = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
STATE_TRAFFIC = 26


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
        with self.device:
            blocks = [Block(arguments.width).to(torch.bfloat16) for _ in range(arguments.blocks)]
        self.model = torch.nn.Sequential(*blocks)
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
        found["device_memory"] = 2 * copy_rate(there, there.clone(), loop.finish)
    return found


def bound(passes_s, parameters, on_device, rate):
    """(seconds, what binds); `on_device`: the share of the state that lies there."""
    host = parameters * (1 - on_device)
    least = {"host memory": STATE_TRAFFIC * host / rate["host_memory"]}
    if "device_memory" in rate:
        least["the link to the host"] = 2 * host / rate["device_to_host"]
        least["the link to the device"] = 2 * host / rate["host_to_device"]
        least["device memory"] = STATE_TRAFFIC * parameters * on_device / rate["device_memory"]
    name, update = max(least.items(), key=lambda item: item[1])
    return passes_s + update, "computation" if passes_s > update else name


def make_optimizer(loop, where):
    """(optimizer after its first step, None), or (None, why it is refused)."""
    import transload
    try:
        optimizer = transload.AdamW(loop.model.parameters(), **HYPER, **where)
        loop.passes()
        optimizer.step()
        return optimizer, None
    except (TypeError, ValueError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {error}"


def measure(arguments, where):
    loop = Loop(arguments)
    passes_s, _ = loop.seconds(loop.passes, arguments.steps)
    found = {"parameters": loop.parameters, "passes_s": passes_s, "rates": rates(loop)}
    optimizer, found["refused"] = make_optimizer(loop, where)
    if optimizer is None:
        return found

    def step():
        loss = loop.passes()
        optimizer.step()
        return loss

    found["step_s"], found["losses"] = loop.seconds(step, arguments.steps)
    report = {key: value for key, value in optimizer.report().items() if isinstance(value, (int, float, str))}
    on_device = report.get("device_state_bytes", 0) / report["state_bytes"]
    found["lower_bound_s"], found["binds"] = bound(passes_s, loop.parameters, on_device, found["rates"])
    found["fraction"] = found["lower_bound_s"] / found["step_s"]
    found["report"] = report
    if loop.device.type == "cuda":
        found["peak_device_bytes"] = torch.cuda.max_memory_allocated()
    if not found["losses"][-1] < found["losses"][0]:
        raise SystemExit(f"the loss does not fall: {found['losses']}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--device", default="cuda")
    for name in ("blocks", "width", "tokens", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device-memory", default="2GiB")
    arguments = parser.parse_args()
    places = {"state_in_host_memory": {}}
    if arguments.device == "cuda":
        places["state_also_in_device_memory"] = {"device_memory": arguments.device_memory}
    found = {"gpu": torch.cuda.get_device_name() if arguments.device == "cuda" else None, "runs": {}}
    try:
        for name, where in places.items():
            found["runs"][name] = measure(arguments, where)
    finally:
        with open(arguments.json, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
