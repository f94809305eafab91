"""Tiny models from a config and synthetic data, for the trainers' tests."""
import torch

LR, DECAY = 2e-3, 0.1
BUDGET = "1MiB"  # of host memory, for the state of tiny_llama


def tiny_llama():
    """Six hundred thousand parameters: 4.8 MB of moments."""
    import transformers
    torch.manual_seed(11)
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      tie_word_embeddings=False, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config)


class Tokens(torch.utils.data.Dataset):
    """Sequences that can be learnt: each token follows from the one before."""

    def __init__(self, n=256, length=32):
        generator = torch.Generator().manual_seed(12)
        start = torch.randint(0, 256, (n, 1), generator=generator)
        rows = [start]
        for _ in range(length - 1):
            rows.append((rows[-1] * 5 + 17) % 256)
        self.ids = torch.cat(rows, 1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def relative(ours, theirs):
    """Largest relative difference of two lists of losses; they must be as long, finite and not all the same."""
    assert len(ours) == len(theirs) > 1
    assert len(set(theirs)) > 1 and all(x == x for x in ours)
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


# fp32 losses of a few dozen steps: rounding of the last bit, grown through the steps.
TOLERANCE = 1e-4
