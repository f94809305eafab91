"""The optimizer over tensors that a caller owns (include/transload/offloaded_adamw.h).

Addresses are integers of contiguous memory. Element types: 0 fp32, 1 bf16, 2 fp16. Planes: 0 moment1, 1 moment2,
2 master. Raises ValueError (bad values), MemoryError (budget), OSError (disk), StepFailed.
"""
class StepFailed(RuntimeError):
    """A step that ended in the middle."""

    updated: list[int]
    """Tensors that have new weights in full."""

Row = tuple[float, float, float, float, float, list[int], list[int], list[int], list[int]]
"""lr, beta1, beta2, eps, weight decay; then tensors, addresses of weights and gradients, gradients' types."""

class Core:
    def __init__(
        self,
        tensors: list[tuple[str, int, int, int, int]],
        *,
        host_memory: int = 0,
        nvme: str = "",
        chunk_elements: int = 0,
        moments: int = 0,
        seed: int = 0,
        io_uring: bool = True,
        record: str = "",
        device_memory: int = 0,
        device_arena: int = 0,
    ) -> None:
        """Tensors as (name, elements, element type, key, CUDA device or -1); host_memory in bytes, 0 for what all state
        needs; device_arena: the address of device_memory bytes on the device, nothing under way there.
        """
    def close(self) -> None: ...
    def step(self, rows: list[Row], threads: int, stream: int = 0) -> None:
        """`stream`: the caller's cudaStream_t, where tensors are on a device."""
    def gradients_finite(self, rows: list[Row], threads: int) -> bool: ...
    def step_count(self, tensor: int) -> int: ...
    def set_step_count(self, tensor: int, steps: int) -> None: ...
    def read(self, tensor: int, plane: int, first: int, count: int, weight: int, out: int) -> None: ...
    def write(self, tensor: int, plane: int, first: int, count: int, values: int, weight: int) -> None: ...
    def reset(self, tensor: int) -> None: ...
    def reserve(self, bytes: int) -> bool: ...
    def reservable(self) -> int: ...
    def report(self) -> dict[str, int | float | str | bool]: ...

def digest(address: int, bytes: int) -> bytes:
    """128 bits of xxh3 over `bytes` bytes at the address."""

def cuda_unavailable() -> str:
    """Why tensors on CUDA devices cannot be stepped here; empty where they can."""

def device_bytes(
    tensors: list[tuple[str, int, int, int, int]],
    *,
    device_memory: int,
    host_memory: int = 0,
    nvme: str = "",
    chunk_elements: int = 0,
    moments: int = 0,
) -> int:
    """What of device_memory would be used."""

def empty_report() -> dict[str, int | float | str | bool]:
    """report() of an optimizer without tensors and without steps."""
