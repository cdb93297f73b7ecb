"""The camps of compare_quantised.py beside those of quantised_layouts.py, and a table of all."""

import json

import torch
from quantised_layouts import (
    FLOATS,
    Awq,
    AutoRound,
    Camp,
    CompressedTensors,
    Float8,
    Gptq,
    Stored,
    float8,
    groups_of,
    mxfp4,
    nvfp4,
    packed,
    rounded,
    rounding_but_outliers,
    rounding_float4,
    rounding_float8,
    rounding_int8,
    rounding_mxfp4,
)

NF4 = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)
BNB_FP4 = torch.tensor(
    [0, 0.005208333333333333, 0.6666666666666666, 1, 0.3333333333333333, 0.5, 0.16666666666666666, 0.25]
)


class ModelOpt(Camp):
    method = "modelopt"

    def draw(self):
        self.skipped = self.leave_whole()[1]
        self.rounds = self.maybe(0.6)
        self.beside = "hf_quant_config.json" if self.maybe(0.3) else None

    def configuration(self):
        if self.beside:
            return {
                "producer": {"name": "modelopt", "version": "0.23.0"},
                "quantization": {
                    "quant_algo": "NVFP4",
                    "kv_cache_quant_algo": None,
                    "group_size": 16,
                    "exclude_modules": self.skipped,
                },
            }
        return {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": self.skipped,
            "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}},
        }

    def store(self, name, weight, has_bias):
        if self.is_whole(name) or weight.shape[1] % 16:
            return None
        (codes, scales, shared), values = nvfp4(weight)
        tensors = {
            f"{name}.weight": codes,
            f"{name}.weight_scale": scales,
            f"{name}.weight_scale_2": (1 / shared).view(()),
        }
        rounding = None
        if self.rounds:
            tensors[f"{name}.input_scale"] = torch.tensor(5 / (448 * 6))
            rounding = rounding_float4(1 / tensors[f"{name}.input_scale"].item())
        return Stored(tensors, values, rounding)


class BitsAndBytes(Camp):
    method = "bitsandbytes"

    def draw(self):
        self.kind = self.one("nf4", "fp4", "nf4_double", "fp4_double", "int8", "int8")
        self.skipped = self.leave_whole()[1]
        self.block = self.one(64, 64, 128)
        self.threshold = self.one(6.0, 6.0, 2.0, 0.0)

    def configuration(self):
        is_8 = self.kind == "int8"
        return {
            "quant_method": self.method,
            "load_in_4bit": not is_8,
            "load_in_8bit": is_8,
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": self.kind[:3],
            "bnb_4bit_use_double_quant": "double" in self.kind,
            "llm_int8_threshold": self.threshold,
            "llm_int8_skip_modules": self.skipped or None,
        }

    def store(self, name, weight, has_bias):
        if self.is_whole(name):
            return None
        if self.kind == "int8":
            most = weight.abs().amax(1).clamp(min=1e-6)
            codes = (weight * (127 / most[:, None])).round().to(torch.int8)
            tensors = {f"{name}.weight": codes, f"{name}.SCB": most}
            if self.maybe(0.7):
                tensors[f"{name}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
            return Stored(
                tensors, codes * (most[:, None] * 7.874015718698502e-3), rounding_but_outliers(self.threshold)
            )
        levels = NF4 if self.kind.startswith("nf4") else torch.cat([BNB_FP4, -BNB_FP4])
        flat = weight.flatten()
        flat = torch.nn.functional.pad(flat, (0, -weight.numel() % self.block)).view(-1, self.block)
        scales = flat.abs().amax(1).clamp(min=1e-6)
        state = {"quant_type": self.kind[:3], "blocksize": self.block, "dtype": "float16", "shape": list(weight.shape)}
        key = f"{name}.weight"
        tensors = {f"{key}.absmax": scales, f"{key}.quant_map": levels.clone()}
        if "double" in self.kind:
            scales = self.scales_in_codes(key, scales, state, tensors)
        codes = (flat / scales[:, None])[..., None].sub(levels).abs().argmin(-1)
        values = (levels[codes] * scales[:, None]).flatten()[: weight.numel()].view(weight.shape)
        codes = codes.flatten()[: weight.numel()]
        codes = torch.nn.functional.pad(codes, (0, codes.numel() % 2))
        tensors[key] = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).view(-1, 1)
        said = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[f"{key}.quant_state.bitsandbytes__{self.kind[:3]}"] = said
        return Stored(tensors, values)

    def scales_in_codes(self, key, scales, state, tensors):
        offset, levels = scales.mean(), torch.linspace(-1, 1, 256)
        rest = torch.nn.functional.pad(scales - offset, (0, -scales.numel() % 256)).view(-1, 256)
        shared = rest.abs().amax(1).clamp(min=1e-6)
        codes = (rest / shared[:, None])[..., None].sub(levels).abs().argmin(-1)
        tensors |= {
            f"{key}.absmax": codes.flatten()[: scales.numel()].to(torch.uint8),
            f"{key}.nested_absmax": shared,
            f"{key}.nested_quant_map": levels,
        }
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
        return (levels[codes] * shared[:, None]).flatten()[: scales.numel()] + torch.tensor(state["nested_offset"])


class TorchAo(Camp):
    method = "torchao"

    def draw(self):
        self.bits = self.one(8, 8, 1, 2, 3, 4, 4, 5, 6, 7)
        self.plain = self.bits == 8 and self.maybe(0.5)
        self.group = 0 if self.plain else self.one(0, 32, 64, 128)
        self.symmetric = self.plain or self.one(True, False)
        self.dtype = self.floats()
        self.leave_whole()

    def configuration(self):
        kind = (
            {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}
            if self.plain
            else {
                "_type": "IntxWeightOnlyConfig",
                "_version": 2,
                "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": f"int{self.bits}"}},
            }
        )
        return {"quant_method": "torchao", "quant_type": {"default": kind}, "modules_to_not_convert": None}

    def store(self, name, weight, has_bias):
        if self.is_whole(name) or self.group and weight.shape[1] % self.group:
            return None
        index = groups_of(weight.shape[1], self.group)
        codes, zeros, scales, values = rounded(weight, index, self.bits, self.symmetric, self.dtype)
        middle = 1 << self.bits - 1
        tensors = {f"{name}._weight_qdata": (codes - middle).to(torch.int8), f"{name}._weight_scale": scales}
        if not self.plain and (not self.symmetric or self.maybe(0.5)):
            tensors[f"{name}._weight_zero_point"] = (zeros - middle).to(torch.int8)
        return Stored(tensors, values)


class Hqq(Camp):
    method = "hqq"

    def draw(self):
        self.bits = self.one(8, 4, 4, 3, 2, 1)
        self.axis, self.group = self.one(1, 1, 0), self.one(16, 32, 64, 64, 128, None)
        self.dtype = FLOATS[self.one("float32", "float16", "bfloat16")]
        self.configured = self.maybe(0.5)
        self.leave_whole()

    def configuration(self):
        weights = {"nbits": self.bits, "group_size": self.group, "axis": self.axis, "channel_wise": True}
        return {"quant_method": "hqq", "quant_config": {"weight_quant_params": weights}} if self.configured else None

    def store(self, name, weight, has_bias):
        size = self.group or weight.shape[self.axis]
        if self.is_whole(name) or weight.numel() % size or self.axis and weight.shape[1] % size:
            return None
        lines = weight.reshape(-1, size) if self.axis else weight.reshape(size, -1)
        count = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[self.bits]
        if self.bits != 3 and lines.shape[0] % count:
            return None
        low, high = lines.amin(self.axis, keepdim=True), lines.amax(self.axis, keepdim=True)
        most = (1 << self.bits) - 1
        scale = ((high - low) / most).clamp(min=1e-4).to(self.dtype)
        zero = (-low / scale.float()).to(self.dtype)
        codes = (lines / scale.float() + zero.float()).round().clamp(0, most)
        values = ((codes - zero.float()) * scale.float()).view(weight.shape)
        whole = torch.nn.functional.pad(codes.long(), (0, 0, 0, -codes.shape[0] % count)).view(
            count, -1, codes.shape[1]
        )
        words = sum(part << (count - 1 - i) * self.bits for i, part in enumerate(whole))
        name_of = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}[self.bits]
        said = {"nbits": self.bits, "group_size": size, "axis": self.axis}
        tensors = {f"{name}.{key}": torch.tensor(value) for key, value in said.items()}
        tensors |= {
            f"{name}.W_q": words.to(torch.int32 if self.bits == 3 else torch.uint8),
            f"{name}.scale": scale,
            f"{name}.zero": zero,
            f"{name}.shape": torch.tensor(weight.shape),
            f"{name}.packing": torch.tensor(list(name_of.encode()), dtype=torch.uint8),
        }
        return Stored(tensors, values)


class Mxfp4(Camp):
    """Stacks of experts, as gpt-oss's own files have them."""

    families = ("gpt_oss",)

    def draw(self):
        pass

    def configuration(self):
        return {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}

    def store(self, name, weight, has_bias):
        return None

    def store_stack(self, name, stack):
        """Of [experts, in, out]; the values are so too."""
        if stack.shape[1] % 32:
            return None
        (blocks, scales), values = mxfp4(stack.transpose(1, 2).flatten(0, 1))
        lines = (stack.shape[0], stack.shape[2], stack.shape[1] // 32)
        return Stored(
            {f"{name}_blocks": blocks.view(*lines, 16), f"{name}_scales": scales.view(lines)},
            values.view(stack.shape[0], stack.shape[2], -1).transpose(1, 2).contiguous(),
        )


class Quark(Camp):
    method = "quark"

    def draw(self):
        self.ignored, skipped = self.leave_whole()
        self.skipped = [name for name in self.modules if name.endswith("lm_head")]
        self.skipped += [f"re:{one}" for one in self.ignored] if self.maybe(0.5) else skipped
        # What is so of all modules, and perhaps of those whose names end so.
        self.schemes = {self.leaf(): self.scheme()} if self.maybe(0.4) else {}
        self.schemes[""] = self.scheme()

    def scheme(self):
        dtype = self.one("fp8_e4m3", "fp8_e4m3", "int8", "int4", "uint4", "fp4", "fp4")
        weight = {"dtype": dtype, "is_dynamic": False, "symmetric": dtype != "uint4", "ch_axis": 0}
        if dtype in ("fp8_e4m3", "int8"):
            weight["qscheme"] = self.one("per_tensor", "per_channel")
        else:
            weight |= {"qscheme": "per_group", "ch_axis": -1, "group_size": 32 if dtype == "fp4" else self.one(32, 64)}
        exponents = {"scale_format": "e8m0", "scale_calculation_mode": "even"}
        weight |= exponents if dtype == "fp4" else {}
        static8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
        inputs = {
            "fp8_e4m3": self.one(None, static8, static8 | {"qscheme": "per_channel", "is_dynamic": True}),
            "int8": self.one(None, static8 | {"dtype": "int8", "symmetric": self.one(True, False)}),
            "fp4": self.one(None, weight | {"is_dynamic": True}, static8),
        }
        return {"weight": weight, "input_tensors": inputs.get(dtype), "output_tensors": None, "bias": None}

    def configuration(self):
        return {
            "quant_method": self.method,
            "global_quant_config": self.schemes[""],
            "layer_quant_config": {f"*.{leaf}": scheme for leaf, scheme in self.schemes.items() if leaf},
            "layer_type_quant_config": {},
            "exclude": self.skipped,
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
            "quant_mode": "eager_mode",
        }

    def store(self, name, weight, has_bias):
        scheme = self.schemes.get(name.rsplit(".", 1)[-1], self.schemes[""])
        said, group = scheme["weight"], scheme["weight"].get("group_size")
        is_words = said["dtype"] in ("int4", "uint4")
        if self.is_whole(name) or name in self.turned or group and weight.shape[1] % group:
            return None
        if is_words and weight.shape[0] % 8:
            return None
        tensors = {}
        values = getattr(self, "store_words" if is_words else f"store_{said['dtype']}")(name, weight, said, tensors)
        return Stored(tensors, values, self.round_inputs(name, scheme["input_tensors"], tensors))

    def round_inputs(self, name, said, tensors):
        if said is None:
            return None
        if said["dtype"] == "fp4":
            return rounding_mxfp4
        if said["is_dynamic"]:
            return rounding_float8()
        # Experts' two inputs that are one matrix in the reference have the same.
        number = 1 + sum(name.rsplit(".", 1)[0].encode()) % 7
        is_float = said["dtype"] == "fp8_e4m3"
        tensors[f"{name}.input_scale"] = torch.tensor((0.004 if is_float else 0.02) * number)
        scale = tensors[f"{name}.input_scale"].item()
        if is_float:
            return rounding_float8(scale)
        zero = 0 if said["symmetric"] else number * 9 - 30
        tensors[f"{name}.input_zero_point"] = torch.tensor(zero, dtype=torch.int8)
        return rounding_int8(said["symmetric"], scale, zero)

    def store_fp8_e4m3(self, name, weight, said, tensors):
        is_one = said["qscheme"] == "per_tensor"
        codes, scales, values = float8(name, weight, (1 << 30 if is_one else 1, 1 << 30), torch.float32)
        tensors |= {f"{name}.weight": codes, f"{name}.weight_scale": scales.view(() if is_one else (-1,))}
        return values

    def store_int8(self, name, weight, said, tensors):
        is_one = said["qscheme"] == "per_tensor"
        lines = weight.reshape(1, -1) if is_one else weight
        codes, zeros, scales, values = rounded(lines, groups_of(lines.shape[1], 0), 8, True, torch.float32)
        shape = () if is_one else (-1,)
        tensors |= {
            f"{name}.weight": (codes - 128).to(torch.int8).view(weight.shape),
            f"{name}.weight_scale": scales.view(shape),
            f"{name}.weight_zero_point": (zeros - 128).to(torch.int8).view(shape),
        }
        return values.view(weight.shape)

    def store_words(self, name, weight, said, tensors):
        symmetric = said["symmetric"]
        index = groups_of(weight.shape[1], said["group_size"])
        codes, zeros, scales, values = rounded(weight, index, 4, symmetric, torch.bfloat16)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        signed = 8 if symmetric else 0  # of int4 codes and zeros are numbers of 4 bits with a sign

        def turned(matrix):
            bits = (matrix - signed).long() & 15
            return packed(bits.T.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4, 1)

        tensors |= {
            f"{name}.weight": turned(codes),
            f"{name}.weight_zero_point": turned(zeros),
            f"{name}.weight_scale": scales.T.contiguous(),
        }
        return values

    def store_fp4(self, name, weight, said, tensors):
        (tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]), values = mxfp4(weight)
        return values


CAMPS = {
    "gptq": Gptq,
    "auto-round": AutoRound,
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "fp8": Float8,
    "modelopt": ModelOpt,
    "bitsandbytes": BitsAndBytes,
    "torchao": TorchAo,
    "hqq": Hqq,
    "mxfp4": Mxfp4,
    "quark": Quark,
}
