#!/usr/bin/env python3
"""What GGUF's quantised blocks mean, as the package `gguf` computes it: a few blocks of every format with their values.
Writes tests/data/gguf_quants/<format>.bin: each block's bytes, then its values as little-endian float32; of F16 and BF16
one value takes a block's place. The package knows the size of Q8_K's blocks alone: their values are d * q here. Needs
numpy and gguf (0.19).

    scripts/make_gguf_quant_data.py [--folder FOLDER] [--seed SEED] [--blocks BLOCKS OF RANDOM BITS]
    scripts/make_gguf_quant_data.py --grids      # the digests in tests/tensor/grids_test.cpp
"""

import argparse
import pathlib

import gguf
import numpy as np

# Where a block has its f16 scales. All other bytes may be anything.
SCALES = {
    "F16": [0], "BF16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [48],
    "TQ1_0": [52], "TQ2_0": [64], "NVFP4": [], "Q8_K": [2],
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
            if name == "IQ1_M":  # four bits in each of four words
                words = block[at:at + 8].view(np.uint16)
                words[:] = words & 0x0fff | (int(bits) >> np.array([0, 4, 8, 12]) & 15) << 12
            else:
                block[at:at + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)
    if name == "NVFP4":  # a scale is a byte: all of them
        blocks = random.integers(0, 256, (64, size), np.uint8)
        blocks[:, :4] = np.arange(256).reshape(64, 4)
    return blocks


def values_of(blocks, name):
    if name == "Q8_K":
        return blocks[:, :4].copy().view(np.float32) * blocks[:, 4:260].view(np.int8).astype(np.float32)
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])


def print_grid_digests():
    """FNV-1a of which magnitude each value of each point has, a byte a value."""
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"):
        quant = getattr(gguf.quants, name)
        quant.init_grid()
        digest = 0xcbf29ce484222325
        for value in quant.grid.flatten():
            digest = (digest ^ quant.grid_map.index(value)) * 0x100000001b3 % 2**64
        print(f"{name:8} {quant.grid_shape} {digest:#018x}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent / "tests/data/gguf_quants")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--grids", action="store_true")
    options = parser.parse_args()
    if options.grids:
        return print_grid_digests()

    options.folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SCALES):
        blocks = blocks_of(name, options.blocks, np.random.default_rng([options.seed, number]))
        with np.errstate(all="ignore"):
            values = values_of(blocks, name).astype("<f4")
        with open(options.folder / f"{name.lower()}.bin", "wb") as file:
            for block, floats in zip(blocks, values):
                file.write(block.tobytes() + floats.tobytes())


if __name__ == "__main__":
    main()
