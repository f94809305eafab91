"""Sizes as people write them."""
from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3}
_UNITS |= {letter + "B": 1000**power for power, letter in enumerate("MGTP", start=2)}
_UNITS |= {letter + "iB": 1024**power for power, letter in enumerate("KMGTP", start=1)}
_WRITTEN = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?([A-Za-z]*)", re.ASCII)


def parse_size(size: int | str, what: str = "size") -> int:
    """Bytes of "8GiB" (2^30), "1.5GB" (10^9), "4096" or an int, as the command line reads them.

    `what` names the value in messages. ValueError for anything else, also below zero or above 64 bits.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return _checked(size, size, what)
    written = _WRITTEN.fullmatch(size) if isinstance(size, str) else None
    if written is None or written[2] not in _UNITS:
        raise _refusal(size, "is not a size", what)
    unit = _UNITS[written[2]]
    if unit == 1 and "." in written[1]:
        raise _refusal(size, "is not a whole number of bytes", what)
    return _checked(int(Fraction(written[1]) * unit), size, what)


def _checked(size: int, given: int | str, what: str) -> int:
    if size < 0:
        raise _refusal(given, "is below zero", what)
    if size >= 2**64:
        raise _refusal(given, "is too large", what)
    return size


def _refusal(given: object, why: str, what: str) -> ValueError:
    return ValueError(
        f'{what}: "{given}" {why}. Write a size as 24GiB, 512MiB, 1.5GB (10^9) or 4096 (bytes).'
    )
