#!/usr/bin/env python3
"""Loads a model folder with transformers: the loss on some tokens, and whether another folder gives the same logits.

    check_export.py EXPORT --data TOKENS.bin [--against FOLDER] [--length 128] [--samples 4]

TOKENS is a .bin file of uint16 ids (uint32 where the vocabulary is above 65536), or text, taken by bytes. Computes in
float32 (of weights as they are stored). With --against the folders must agree in every logit to within --tolerance,
absolute and relative. Ends with 1 where they do not, or where transformers misses, adds or renames a weight.
Needs torch and transformers.
"""
import argparse
import os
import pathlib
import sys

# Beside this file lies tokenize.py, which would hide a module of Python's library from what is imported here.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]

import numpy
import torch
from transformers import AutoModelForCausalLM


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32,
                                                       output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(what):
            sys.exit(f"{folder}: {what.replace('_', ' ')}: {sorted(map(str, info[what]))}")
    return model.eval()


def read_tokens(path, vocabulary, count):
    dtype = numpy.uint8 if path.suffix != ".bin" else "<u4" if vocabulary > 65536 else "<u2"
    ids = numpy.fromfile(path, dtype=dtype, count=count).astype(numpy.int64)
    if ids.size and ids.max() >= vocabulary:
        sys.exit(f"{path}: id {ids.max()} is beyond the vocabulary of {vocabulary}.")
    return ids


def samples_of(path, vocabulary, length, samples):
    ids = read_tokens(path, vocabulary, samples * length + 1)
    samples = min(samples, (len(ids) - 1) // length)
    if samples < 1:
        sys.exit(f"{path}: {len(ids)} tokens are too few for one sample of {length}.")
    return [torch.from_numpy(ids[i:i + samples * length].reshape(samples, length)) for i in (0, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--against", type=pathlib.Path, help="a folder that must give the same logits")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.0)
    args = parser.parse_args()

    model = load(args.export)
    inputs, targets = samples_of(args.data, model.config.vocab_size, args.length, args.samples)
    with torch.no_grad():
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        print(f"{args.export}: loss {loss.item():.6f} on {targets.numel()} predictions")
        if not torch.isfinite(logits).all():
            sys.exit(f"{args.export}: some logits are not finite.")
        if args.against is None:
            return
        other = load(args.against)(inputs).logits
    difference = (logits - other).abs()
    print(f"{args.against}: largest difference of a logit {difference.max().item():.3g}")
    if not (difference <= args.tolerance * (1 + other.abs())).all():
        sys.exit("The logits differ.")
    print("The logits agree.")


if __name__ == "__main__":
    main()
