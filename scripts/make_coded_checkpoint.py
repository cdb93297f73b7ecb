#!/usr/bin/env python3
"""A checkpoint of Hugging Face's layout in the codes of another camp, packed from the formats' public definitions.

    make_coded_checkpoint.py SOURCE TARGET --kind awq|gptq|w4a16|w8a8|nf4|torchao|torchao8|e5m2 [--group 64]

SOURCE: a directory with one model.safetensors of numbers (bench/compare/convert.py makes one of a GGUF file). Weights are rounded to
nearest, without calibration; gptq orders columns by the norm's weight before them, or their own size, as act-order does by their
activations: layers that share inputs share the order. Needs numpy and safetensors.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)


def packed(codes, bits, axis):
    """Words of 32 bits along an axis, the lowest bits first."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, 0)
    count = 32 // bits
    words = np.zeros((codes.shape[0] // count,) + codes.shape[1:], np.uint32)
    for i in range(count):
        words |= codes[i::count] << np.uint32(bits * i)
    return np.ascontiguousarray(np.moveaxis(words, 0, axis)).view(np.int32)


def in_groups(weight, group):
    return weight.reshape(weight.shape[0], -1, group)


def with_zeros(weight, group, bits=4):
    """Codes [out, in], zeros and scales [out, groups], by each group's range."""
    parts = in_groups(weight, group)
    most = (1 << bits) - 1
    low = np.minimum(parts.min(2), 0)
    high = np.maximum(parts.max(2), 0)
    scale = np.maximum((high - low) / most, 1e-7).astype(np.float16)
    wide = scale.astype(np.float32)
    zero = np.clip(np.rint(-low / wide), 1, most)
    codes = np.clip(np.rint(parts / wide[..., None]) + zero[..., None], 0, most)
    return codes.reshape(weight.shape), zero, scale


def symmetric(weight, group, most):
    parts = in_groups(weight, group)
    scale = np.maximum(np.abs(parts).max(2) / most, 1e-7).astype(np.float32)
    return np.clip(np.rint(parts / scale[..., None]), -most - 1, most).reshape(weight.shape), scale


def awq(module, weight, group, _):
    codes, zero, scale = with_zeros(weight, group)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    turned = lambda matrix: packed(matrix.T.reshape(matrix.shape[1], -1, 8)[:, :, order].reshape(matrix.shape[1], -1), 4, 1)
    return {f"{module}.qweight": turned(codes), f"{module}.qzeros": turned(zero), f"{module}.scales": np.ascontiguousarray(scale.T)}


def gptq(module, weight, group, sizes):
    order = np.argsort(-sizes, kind="stable")
    codes, zero, scale = with_zeros(weight[:, order], group)
    natural = np.empty_like(codes)
    natural[:, order] = codes
    index = np.empty(weight.shape[1], np.int32)
    index[order] = np.arange(weight.shape[1]) // group
    return {f"{module}.qweight": packed(natural.T, 4, 0), f"{module}.qzeros": packed(zero.T - 1, 4, 1),
            f"{module}.scales": np.ascontiguousarray(scale.T), f"{module}.g_idx": index}


def w4a16(module, weight, group, _):
    codes, scale = symmetric(weight, group, 7)
    scale = scale.astype(np.float16)
    return {f"{module}.weight_packed": packed(codes + 8, 4, 1), f"{module}.weight_scale": scale,
            f"{module}.weight_shape": np.array(weight.shape, np.int64)}


def w8a8(module, weight, *_):
    codes, scale = symmetric(weight, weight.shape[1], 127)
    scale = scale.astype(np.float16)
    return {f"{module}.weight": codes.astype(np.int8), f"{module}.weight_scale": scale}


def nf4(module, weight, *_):
    blocks = weight.reshape(-1, 64)
    scale = np.maximum(np.abs(blocks).max(1), 1e-12).astype(np.float32)
    codes = np.searchsorted((NF4[1:] + NF4[:-1]) / 2, blocks / scale[:, None]).reshape(-1).astype(np.uint8)
    said = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(weight.shape)})
    name = f"{module}.weight"
    return {name: (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1), f"{name}.absmax": scale, f"{name}.quant_map": NF4,
            f"{name}.quant_state.bitsandbytes__nf4": np.frombuffer(said.encode(), np.uint8)}


def torchao(module, weight, group, _):
    """An IntxUnpackedToInt8Tensor of int4, taken apart."""
    codes, zero, scale = with_zeros(weight, group)
    return {f"{module}._weight_qdata": (codes - 8).astype(np.int8), f"{module}._weight_scale": scale,
            f"{module}._weight_zero_point": (zero - 8).astype(np.int8)}


def torchao8(module, weight, *_):
    codes, scale = symmetric(weight, weight.shape[1], 127)
    return {f"{module}._weight_qdata": codes.astype(np.int8), f"{module}._weight_scale": scale}


def e5m2(module, weight, *_):
    """The upper bytes of halves, to nearest, with a scale a row. NumPy has no such type: the header is mended afterwards."""
    scale = np.maximum(np.abs(weight).max(1, keepdims=True) / 57344, 1e-12).astype(np.float32)
    halves = (weight / scale).astype(np.float16).view(np.uint16).astype(np.uint32)
    rounded = halves + 0x7f + (halves >> 8 & 1)
    rounded = np.where((rounded & 0x7fff) >= 0x7c00, halves & 0xff00, rounded)  # the largest stays a number
    return {f"{module}.weight": (rounded >> 8).astype(np.uint8), f"{module}.weight_scale": scale}


def name_e5m2(path):
    """U8 of matrices are F8_E5M2: both names have their bytes in the header, which keeps its length."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "U8":
            entry["dtype"] = "F8_E5M2"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size:])


def compressed(bits, group, inputs, form):
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False,
               "strategy": "group" if group else "channel", "group_size": group}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


KINDS = {
    "awq": (awq, lambda group: {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}),
    "gptq": (gptq, lambda group: {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": False, "desc_act": True,
                                  "checkpoint_format": "gptq"}),
    "w4a16": (w4a16, lambda group: compressed(4, group, None, "pack-quantized")),
    "w8a8": (w8a8, lambda _: compressed(8, None, {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True,
                                                  "strategy": "token"}, "int-quantized")),
    "torchao": (torchao, lambda _: {"quant_method": "torchao", "quant_type": {"default": {
        "_type": "IntxWeightOnlyConfig", "_version": 2, "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "int4"}}}}}),
    "torchao8": (torchao8, lambda _: {"quant_method": "torchao", "quant_type": {"default": {
        "_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}}}),
    "e5m2": (e5m2, lambda _: {"quant_method": "fp8", "fmt": "e5m2", "activation_scheme": "dynamic"}),
    "nf4": (nf4, lambda _: {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
                            "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False,
                            "bnb_4bit_quant_storage": "uint8"}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--group", type=int, default=64)
    arguments = parser.parse_args()
    pack, config_of = KINDS[arguments.kind]
    arguments.target.mkdir(parents=True, exist_ok=True)
    for path in arguments.source.iterdir():
        if path.is_file() and path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, arguments.target)
    tensors = {}
    source = load_file(arguments.source / "model.safetensors")
    norms = {"q_proj": "input_layernorm", "k_proj": "input_layernorm", "v_proj": "input_layernorm",
             "gate_proj": "post_attention_layernorm", "up_proj": "post_attention_layernorm"}
    for name, value in source.items():
        is_matrix = value.ndim == 2 and name.endswith("_proj.weight")
        if is_matrix:
            layer, _, stem = name.removesuffix(".weight").rsplit(".", 2)
            norm = source.get(f"{layer}.{norms.get(stem)}.weight")
            sizes = np.abs(value).sum(0) if norm is None else np.abs(norm)
            tensors |= pack(name.removesuffix(".weight"), value.astype(np.float32), arguments.group, sizes)
        else:
            tensors[name] = value.astype(np.float16)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, arguments.target / "model.safetensors",
              metadata={"format": "pt"})
    if arguments.kind == "e5m2":
        name_e5m2(arguments.target / "model.safetensors")
    config = json.loads((arguments.source / "config.json").read_text())
    config["quantization_config"] = config_of(arguments.group)
    (arguments.target / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
