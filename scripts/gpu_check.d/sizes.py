"""How large each part is: on a GPU, and over the stand-in, which runs a kernel's threads one after the other and only
shows that the script works."""

MODEL_2B = {"hidden_size": 2560, "num_hidden_layers": 22, "num_attention_heads": 20, "num_key_value_heads": 20,
            "intermediate_size": 6912, "vocab_size": 32000}
"""1.91 billion parameters, a shape of our own: with what a step keeps they take less than 28 GiB of disk."""
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 64, "vocab_size": 64}

GPU = {
    "kernels": [],
    "links": [],
    "products": [],
    "tests": [],
    "train": {"model": "llama-60m", "flags": ["--batch-size", 4, "--sequence-length", 256, "--commit-every", 1000]},
    "llama_1b": {"model": "llama-1b", "flags": ["--batch-size", 4, "--sequence-length", 2048,
                                                "--host-memory", "17GiB", "--durability", "none"]},
    "llama_7b": {"model": "llama-7b", "flags": ["--batch-size", 4, "--sequence-length", 2048,
                                                "--host-memory", "92GiB", "--device-memory", "24GiB"]},
    "nvme_2b": {"model": MODEL_2B, "flags": ["--batch-size", 4, "--sequence-length", 2048,
                                             "--host-memory", "4GiB", "--device-memory", "6GiB"]},
    "optimizer": ["--blocks", 6, "--width", 4096, "--tokens", 16384, "--steps", 8],
}
SMALL_STEP = ["--batch-size", 1, "--sequence-length", 8]
STAND_IN = {
    "kernels": ["--elements", 1 << 14, "--repeats", 2],
    "links": ["--mib", 1, "--repeats", 2],
    "products": ["--tokens", 16, "--hidden", 32, "--intermediate", 48, "--repeats", 1],
    "tests": ["CUDA products*,sums of squares*"],
    "train": {"model": TINY, "flags": [*SMALL_STEP, "--commit-every", 1000]},
    "llama_1b": {"model": TINY, "flags": [*SMALL_STEP, "--host-memory", "64MiB", "--durability", "none"]},
    "llama_7b": {"model": TINY, "flags": [*SMALL_STEP, "--host-memory", "64MiB", "--device-memory", "40MiB"]},
    "nvme_2b": {"model": TINY, "flags": [*SMALL_STEP, "--host-memory", "4MiB", "--device-memory", "40MiB"]},
    "optimizer": ["--blocks", 2, "--width", 64, "--tokens", 32, "--steps", 3, "--device", "cpu"],
}
