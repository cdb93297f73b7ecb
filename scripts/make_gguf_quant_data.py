#!/usr/bin/env python3
"""What GGUF's quantised blocks mean, as the package `gguf` computes it: a few blocks of every format with their values.
Writes tests/data/gguf_quants/<format>.bin: each block's bytes, then its values as little-endian float32; of F16 and BF16
one value takes a block's place. Needs numpy and gguf (0.19).

    scripts/make_gguf_quant_data.py [--folder FOLDER] [--seed SEED] [--blocks BLOCKS OF RANDOM BITS]
"""

import argparse
import pathlib

import gguf
import numpy as np

# Where a block has its f16 scales. All other bytes may be anything.
SCALES = {
    "F16": [0], "BF16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}

# Of the first and the second scale: largest, smallest and denormal ones, zeros, infinity and not a number. Blocks of 256
# values take the first two, to keep the files small.
EXTREMES = [(0x03ff, 0x8001), (0xfbff, 0x7bff), (0x8001, 0x0400), (0x7bff, 0x8000), (0x8000, 0x83ff), (0x7c00, 0x0001),
            (0x7e00, 0xfc00)]


def blocks_of(name, random_blocks, random):
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    extremes = EXTREMES[:2] if values > 32 else EXTREMES
    scales = [random.normal(0, 0.05, 2).astype(np.float16).view(np.uint16), *extremes]
    if values == 1:
        random_blocks += 50
    blocks = random.integers(0, 256, (random_blocks + len(scales), size), np.uint8)
    for block, pair in zip(blocks[random_blocks:], scales):
        for at, bits in zip(SCALES[name], pair):
            block[at:at + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)
    return blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent / "tests/data/gguf_quants")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=1)
    options = parser.parse_args()

    options.folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SCALES):
        blocks = blocks_of(name, options.blocks, np.random.default_rng([options.seed, number]))
        with np.errstate(all="ignore"):
            values = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype("<f4")
        with open(options.folder / f"{name.lower()}.bin", "wb") as file:
            for block, floats in zip(blocks, values):
                file.write(block.tobytes() + floats.tobytes())


if __name__ == "__main__":
    main()
