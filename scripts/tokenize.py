#!/usr/bin/env python3
"""Tokenizes text with a model folder's own tokenizer into a .bin file that `transload train --data` reads.

    tokenize.py MODEL_FOLDER OUT.bin TEXT [TEXT ...]

Ids are uint16, or uint32 where the model's vocabulary is above 65536. Each text is tokenized as a whole (cutting it
would change tokens at the cuts) and ends with the tokenizer's end-of-text token, if it has one. Needs transformers.
"""
import argparse
import array
import json
import os
import pathlib
import sys


def load_tokenizer(folder):
    # This file's own name hides a module of Python's library from what is imported here.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        sys.exit(f"tokenize.py needs transformers (pip install transformers): {error}")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder with config.json and the tokenizer's files")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("texts", type=pathlib.Path, nargs="+", help="UTF-8 text files")
    parser.add_argument("--no-end", action="store_true", help="no end-of-text token after each text")
    args = parser.parse_args()
    if args.out.suffix != ".bin":
        sys.exit(f"{args.out}: the name must end in .bin, by which transload knows ids from text.")

    vocabulary = json.loads((args.model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tokenizer = load_tokenizer(str(args.model))
    wide = vocabulary > 65536
    total = 0
    unfinished = args.out.with_name(args.out.name + ".unfinished")
    try:
        with open(unfinished, "wb") as out:
            for path in args.texts:
                ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)["input_ids"]
                if tokenizer.eos_token_id is not None and not args.no_end:
                    ids = ids + [tokenizer.eos_token_id]
                if ids and max(ids) >= vocabulary:
                    sys.exit(f"{path}: id {max(ids)} is beyond the model's vocabulary of {vocabulary} ids.")
                data = array.array("I" if wide else "H", ids)
                if sys.byteorder == "big":
                    data.byteswap()
                data.tofile(out)
                total += len(ids)
        os.replace(unfinished, args.out)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"{args.out}: {total} tokens of {4 if wide else 2} bytes")


if __name__ == "__main__":
    main()
