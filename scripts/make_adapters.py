#!/usr/bin/env python3
"""Writes random LoRA adapters in PEFT's layout, to measure what serving them costs: of every linear layer of a llama.

    scripts/make_adapters.py OUT --count 32 --rank 16            # for the default model, SmolLM2-135M
    quire serve --enable-lora --max-loras 32 --lora-dir OUT

Their answers mean nothing. Needs the standard library alone.
"""

import argparse
import functools
import json
import pathlib
import random
import struct


def bfloat16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


@functools.cache
def pool_of(deviation):
    generator = random.Random(deviation)
    return struct.pack("<8191H", *(bfloat16(generator.gauss(0, deviation)) for _ in range(8191)))


def numbers(count, deviation, generator):
    """COUNT random bfloat16 numbers: a few thousand, again and again from another place."""
    pool = pool_of(deviation)
    shift = 2 * generator.randrange(8191)
    repeated = pool[shift:] + pool * (2 * count // len(pool) + 2)
    return repeated[: 2 * count]


def write(folder, options, seed):
    generator = random.Random(seed)
    hidden, inner = options.hidden_size, options.intermediate_size
    queries, keys = options.heads * options.head_dim, options.kv_heads * options.head_dim
    shapes = {"self_attn.q_proj": (hidden, queries), "self_attn.k_proj": (hidden, keys),
              "self_attn.v_proj": (hidden, keys), "self_attn.o_proj": (queries, hidden),
              "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner), "mlp.down_proj": (inner, hidden)}
    header, data = {}, []
    offset = 0
    for layer in range(options.layers):
        for module, (inputs, outputs) in shapes.items():
            for factor, shape, deviation in (("A", [options.rank, inputs], inputs ** -0.5),
                                             ("B", [outputs, options.rank], 0.02)):
                values = numbers(shape[0] * shape[1], deviation, generator)
                header[f"base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(values)]}
                offset += len(values)
                data.append(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    targets = sorted({module.split(".")[1] for module in shapes})
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": options.rank, "lora_alpha": options.rank, "target_modules": targets}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, help="a folder: OUT/a0, OUT/a1, ...")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--hidden-size", type=int, default=576)
    parser.add_argument("--intermediate-size", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()
    for i in range(options.count):
        write(options.out / f"a{i}", options, i)


if __name__ == "__main__":
    main()
