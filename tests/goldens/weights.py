"""Weights as a pure function of a tensor's name and shape, so that Rust makes the same ones bit for bit.

README.md defines the formula; `tests/src/weights.rs` is its other half.
"""

import numpy as np

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    u = uniform(name, int(np.prod(shape)))
    if "norm" in name or "scalar" in name:
        values = np.float32(1) + np.float32(0.1) * u
    elif len(shape) > 1:
        values = u * np.float32(1 / np.sqrt(np.float64(shape[-1])))
    else:
        values = np.float32(0.1) * u
    return values.reshape(shape)


def uniform(name: str, n: int) -> np.ndarray:
    """`n` float32 values in [-1, 1), exact multiples of 2⁻²³."""
    with np.errstate(over="ignore"):
        state = np.uint64(fnv1a(name)) + np.arange(n, dtype=np.uint64) * GOLDEN_RATIO
        bits = splitmix(state) >> np.uint64(40)
    return (bits.astype(np.float32) * np.float32(2**-23) - np.float32(1)).astype(np.float32)


def fnv1a(name: str) -> int:
    """FNV-1a, 64 bits."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def splitmix(state: np.ndarray) -> np.ndarray:
    """The output of SplitMix64 (Steele, Lea and Flood, 2014) for the state before its step."""
    z = state + GOLDEN_RATIO
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
