"""Compares the example's last validation loss with the text's byte-bigram entropy: example_result.py TEXT SUMMARY."""
import collections
import json
import math
import sys

with open(sys.argv[1], "rb") as file:
    text = file.read()
with open(sys.argv[2]) as file:
    summary = json.load(file)

pairs = collections.Counter(zip(text, text[1:]))
firsts = collections.Counter(text[:-1])
entropy = sum(n * math.log(firsts[a] / n) for (a, _), n in pairs.items()) / (len(text) - 1)
loss = summary["evaluations"][-1]["loss"]
state = 12 * summary["parameters"]
memory = summary["tiers"]["host"]["budget"]
print(f"Byte-bigram entropy of the validation text: {entropy:.4f} nats a byte")
print(f"Validation loss of the model:               {loss:.4f} nats a byte")
print(f"Memory given: {memory / 2**20:.1f} MiB, {memory / state:.2f} of the {state / 2**20:.1f} MiB of state")
if not loss < entropy:
    sys.exit("The model has not learnt more than which byte follows which.")
print("The model has learnt more than which byte follows which.")
