"""Writes quant-<kind>.bin: random blocks of each stored kind and the float32 values that the `gguf`
package's own dequantize gives for them. tests/unit/test_dtype.c compares bit for bit.

    python tests/golden/make_quant.py [FOLDER]      (needs the `gguf` and `numpy` packages)

A file is: u32 blocks, the blocks, then the float32 values. The first blocks have chosen scales (zero,
minus zero, the smallest and largest subnormal, the largest number, negative ones), the others random
ones; no infinities and NaN, whose bits are nobody's contract.
"""
import pathlib
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Kind
from gguf.quants import dequantize

# where the float16 fields of a block are
SCALES = {
    Kind.Q8_0: [0], Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q5_0: [0], Kind.Q5_1: [0, 2],
    Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2], Kind.Q6_K: [208],
}
CHOSEN = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xBC00]


def blocks_of(kind, rng):
    n = 8 if GGML_QUANT_SIZES[kind][0] == 256 else 24
    raw = rng.integers(0, 256, (n, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for b in range(n):
        for i, at in enumerate(SCALES[kind]):
            if b < len(CHOSEN):
                half = CHOSEN[(b + i) % len(CHOSEN)]
            else:
                half = int(np.float16(rng.normal() * 0.02).view(np.uint16))
            raw[b, at:at + 2] = half & 255, half >> 8
    return raw


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    rng = np.random.default_rng(1)
    for kind in SCALES:
        raw = blocks_of(kind, rng)
        want = dequantize(raw, kind).astype("<f4")
        assert np.isfinite(want).all() and want.size == raw.shape[0] * GGML_QUANT_SIZES[kind][0]
        data = struct.pack("<I", raw.shape[0]) + raw.tobytes() + want.tobytes()
        (folder / f"quant-{kind.name}.bin").write_bytes(data)


main()
