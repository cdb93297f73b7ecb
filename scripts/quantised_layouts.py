"""Weights in the layouts that hubs hold, packed from the formats' public definitions with torch alone: a class a camp,
which draws its options and says what is stored of a matrix, what that stands for, and how its inputs are rounded. Of
compare_quantised.py."""

import dataclasses
import re

import torch

FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # of E2M1, then the same with a sign


@dataclasses.dataclass
class Stored:
    tensors: dict  # by whole names
    values: torch.Tensor  # [out, in] in float32
    rounding: object = None  # of inputs: a function, or None


def packed(codes, bits, axis):
    """One stream of bits along an axis, the lowest first, in words of 32."""
    codes = codes.movedim(axis, -1).to(torch.int64)
    stream = (codes[..., None] >> torch.arange(bits) & 1).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[-1] % 32)).unflatten(-1, (-1, 32))
    words = (stream << torch.arange(32)).sum(-1)
    return (words - (words >= 1 << 31) * (1 << 32)).to(torch.int32).movedim(-1, axis).contiguous()


def groups_of(columns, group):
    """The group of each column."""
    return torch.arange(columns) // (group if 0 < group < columns else columns)


def rounded(weight, index, bits, symmetric, dtype, least_zero=0):
    """Codes from 0 on, zeros and scales [out, groups], and what they stand for."""
    most, where = (1 << bits) - 1, index.expand(weight.shape[0], -1)
    nothing = torch.zeros(weight.shape[0], int(index.max()) + 1)
    low = nothing.scatter_reduce(1, where, weight, "amin")
    high = nothing.scatter_reduce(1, where, weight, "amax")
    if symmetric:
        scales = torch.maximum(-low, high) * 2 / most
    else:
        scales = (high - low) / most
    scales = scales.clamp(min=1e-7).to(dtype)
    wide = scales.float()
    zeros = torch.full_like(low, 1 << bits - 1) if symmetric else (-low / wide).round().clamp(least_zero, most)
    codes = ((weight / wide[:, index]).round() + zeros[:, index]).clamp(0, most)
    return codes, zeros, scales, (codes - zeros[:, index]) * wide[:, index]


def to_float8(x, dtype=torch.float8_e4m3fn):
    most = torch.finfo(dtype).max
    return x.float().clamp(-most, most).to(dtype)


def in_groups(function, group):
    def whole(x):
        if not group or group >= x.shape[-1]:
            return function(x)
        return torch.cat([function(part) for part in x.split(group, -1)], -1)

    return whole


def rounding_int8(symmetric, scale=0.0, zero=0, group=0):
    def function(x):
        if scale:
            return (((x / scale).round() + zero).clamp(-128, 127) - zero) * scale
        if symmetric:
            own = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127.5
            return (x / own).round().clamp(-128, 127) * own
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        own = (high - low).clamp(min=1e-30) / 255
        middle = (-128 - low / own).round().clamp(-128, 127)
        return ((x / own + middle).round().clamp(-128, 127) - middle) * own

    return in_groups(function, group)


def rounding_float8(scale=0.0, group=0):
    def function(x):
        own = torch.tensor(scale) if scale else x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
        return to_float8(x / own).to(x.dtype) * own

    return in_groups(function, group)


def fp4_codes(x):
    """Codes of E2M1, to nearest and ties to even."""
    magnitude = x.abs().clamp(max=6)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    found = torch.searchsorted(FP4.to(x.dtype), ((magnitude / step).round() * step).contiguous())
    return found + 8 * (x < 0)


def fp4_numbers(codes):
    return torch.cat([FP4, -FP4])[codes]


def rounding_float4(shared):
    def function(x):
        scale = to_float8(x.abs().amax(-1, keepdim=True) / 6 * shared).to(x.dtype)
        numbers = fp4_numbers(fp4_codes(x * (shared / scale.clamp(min=1e-30)))).to(x.dtype)
        return torch.where(scale > 0, numbers * (scale / shared), 0)

    return in_groups(function, 16)


def rounding_mxfp4(x):
    """Of groups of 32; the largest magnitude, rounded to what E2M1 has a fraction for, says the exponent."""

    def function(x):
        largest = x.abs().amax(-1, keepdim=True).float().view(torch.int32) + 0x200000
        scale = torch.exp2(((largest >> 23) - 127 - 2).clamp(-126, 127).to(x.dtype))
        return fp4_numbers(fp4_codes(x / scale)).to(x.dtype) * scale

    return in_groups(function, 32)(x)


def rounding_but_outliers(threshold):
    def function(x):
        half = x.half().to(x.dtype)
        outlier = half.abs() >= threshold if threshold > 0 else torch.zeros_like(half, dtype=torch.bool)
        largest = torch.where(outlier, 0, half.abs()).amax(-1, keepdim=True).clamp(min=1e-30)
        return torch.where(outlier, x, (half * (127 / largest)).round() * (largest / 127))

    return function


class Camp:
    families = None  # all

    def __init__(self, rng, modules, turned=()):
        self.rng = rng
        self.turned = set(turned)  # modules whose matrices the family keeps as [in, out]
        self.modules = modules  # the shape [out, in] of each
        self.torch_rng = torch.Generator().manual_seed(rng.randint(0, 1 << 30))
        self.whole = [re.compile(re.escape(name) + "$") for name in modules if name.endswith("lm_head")]
        self.beside = None  # the name of the file that holds the configuration, where it is not config.json
        self.draw()

    def one(self, *values):
        return self.rng.choice(values)

    def maybe(self, probability):
        return self.rng.random() < probability

    def floats(self):
        return FLOATS[self.one("float32", "float16", "float16", "bfloat16")]

    def leaf(self):
        return self.one(*sorted({name.rsplit(".", 1)[-1] for name in self.modules}))

    def name(self):
        return self.one(*self.modules)

    def expression(self):
        layer = re.search(r"\.(?:layers|h)\.\d+\.", self.name())
        layer = re.escape(layer.group()) if layer else ""
        return self.one(
            rf".*\.{self.leaf()}$",
            rf".*{layer}.*{self.leaf()}",
            rf".*{layer}",
            re.escape(self.name()) + "$",
            rf".*({self.leaf()}|{self.leaf()})$",
            rf"\w+\..*{self.leaf()[:2]}",
        )

    def leave_whole(self, probability=0.4):
        """Expressions of modules that are left whole, and the modules."""
        found = [self.expression() for _ in range(self.rng.randint(1, 2))] if self.maybe(probability) else []
        self.whole += [re.compile(one) for one in found]
        return found, [name for name in self.modules if any(re.match(one, name) for one in found)]

    def is_whole(self, name):
        return any(pattern.match(name) for pattern in self.whole)

    def described(self):
        return self.configuration()


class Gptq(Camp):
    method = "gptq"

    def draw(self):
        self.bits = self.one(2, 3, 4, 4, 4, 8)
        self.group = self.one(16, 32, 32, 64, 128, -1)
        self.symmetric, self.v2, self.act_order = self.one(True, False), self.one(True, False), self.one(True, False)
        self.order_of = self.one("all", "each")
        self.dtype = self.floats()
        if self.maybe(0.4):
            self.whole = []  # lm_head too
        self.lm_head = not self.whole
        self.dynamic = {}
        for _ in range(self.rng.randint(0, 3) if self.maybe(0.5) else 0):
            key = self.one("+:", "+:", "", "-:") + self.expression()
            more = {"bits": self.one(2, 3, 4, 8)} if self.maybe(0.7) else {}
            more |= {"group_size": self.one(32, 64, -1)} if self.maybe(0.5) else {}
            more |= {"sym": self.symmetric, "desc_act": self.act_order} if self.maybe(0.2) else {}
            self.dynamic[key] = {} if key.startswith("-:") else more
        self.beside = "quantize_config.json" if self.maybe(0.2) else None
        self.empty_bias = self.maybe(0.2)
        self.orders = {}

    def configuration(self):
        found = {
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.symmetric,
            "desc_act": self.act_order,
            "checkpoint_format" if self.maybe(0.8) else "format": "gptq_v2" if self.v2 else "gptq",
            "lm_head": self.lm_head,
            "damp_percent": 0.01,
            "true_sequential": True,
        }
        if self.beside is None:
            found["quant_method"] = self.method
        return found | ({"dynamic": self.dynamic} if self.dynamic or self.maybe(0.3) else {})

    def coding_of(self, name):
        for key, more in self.dynamic.items():
            if re.match(re.sub(r"^[-+]:", "", key), name):
                return (
                    None if key.startswith("-:") else (more.get("bits", self.bits), more.get("group_size", self.group))
                )
        return self.bits, self.group

    def order(self, name, columns, group):
        index = groups_of(columns, group)
        if not self.act_order or self.maybe(0.1):
            return index
        key = (columns, group, name if self.order_of == "each" else "")
        if key not in self.orders:
            if self.maybe(0.15):  # of any sizes
                index = torch.randint(0, int(index.max()) + 1, (columns,), generator=self.torch_rng)
                index[-1] = groups_of(columns, group).max()
            else:
                index = index[torch.randperm(columns, generator=self.torch_rng)]
            self.orders[key] = index
        return self.orders[key]

    def store(self, name, weight, has_bias):
        coding = self.coding_of(name)
        if self.is_whole(name) or coding is None or any(size * coding[0] % 32 for size in weight.shape):
            return None
        bits, group = coding
        index = self.order(name, weight.shape[1], group)
        codes, zeros, scales, values = rounded(
            weight, index, bits, self.symmetric, self.dtype, least_zero=0 if self.v2 else 1
        )
        tensors = {
            f"{name}.qweight": packed(codes.T, bits, 0),
            f"{name}.qzeros": packed(zeros.T - (1 - self.v2), bits, 1),
            f"{name}.scales": scales.T.contiguous(),
            f"{name}.g_idx": index.to(torch.int32),
        }
        if torch.equal(index, groups_of(weight.shape[1], group)) and self.maybe(0.2):
            del tensors[f"{name}.g_idx"]
        if self.empty_bias and not has_bias and "experts" not in name:
            tensors[f"{name}.bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
        return Stored(tensors, values)


class AutoRound(Gptq):
    """The same tensors, and another way to tell what is different of some modules."""

    def draw(self):
        super().draw()
        self.dynamic, self.v2, self.beside, self.others = {}, False, None, {}
        for _ in range(self.rng.randint(0, 4)):
            self.others[self.name()] = {"bits": self.one(2, 4, 8, 16), "group_size": self.one(32, self.group)}

    def configuration(self):
        packing = self.one("auto_round:auto_gptq", "auto_round:gptqmodel")
        return super().configuration() | {
            "quant_method": "auto-round",
            "packing_format": packing,
            "extra_config": self.others,
        }

    def coding_of(self, name):
        more = self.others.get(name, {"bits": self.bits, "group_size": self.group})
        return None if more["bits"] == 16 else (more["bits"], more["group_size"])


class Awq(Camp):
    method = "awq"

    def draw(self):
        self.group = self.one(16, 32, 32, 64, 128, -1)
        self.gemv = self.maybe(0.3)
        self.dtype = self.floats()
        self.skipped = self.leave_whole()[1]
        self.beside = "quant_config.json" if self.maybe(0.2) else None

    def configuration(self):
        old = self.beside is not None
        found = {
            "w_bit" if old else "bits": 4,
            "q_group_size" if old else "group_size": self.group,
            "zero_point": True,
            "version": self.one("GEMV", "gemv") if self.gemv else self.one("GEMM", "gemm"),
        }
        if not old:
            found |= {"quant_method": self.method, "modules_to_not_convert": self.skipped or None}
        return found

    def store(self, name, weight, has_bias):
        group = self.group if 0 < self.group < weight.shape[1] else weight.shape[1]
        if self.is_whole(name) or weight.shape[self.gemv] % 8 or weight.shape[1] % group:
            return None
        codes, zeros, scales, values = rounded(weight, groups_of(weight.shape[1], group), 4, False, self.dtype)
        if self.gemv:
            multiple = {64: 2, 32: 4, 16: 8}.get(group, 1)
            width = -(-scales.shape[1] // (8 * multiple)) * multiple
            more = 8 * width - scales.shape[1]
            zeros, scales = torch.nn.functional.pad(zeros, (0, more)), torch.nn.functional.pad(scales, (0, more))
            return Stored(
                {
                    f"{name}.qweight": packed(codes, 4, 1),
                    f"{name}.qzeros": packed(zeros, 4, 1),
                    f"{name}.scales": scales.contiguous(),
                },
                values,
            )
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        turned = lambda matrix: packed(matrix.T.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4, 1)
        return Stored(
            {
                f"{name}.qweight": turned(codes),
                f"{name}.qzeros": turned(zeros),
                f"{name}.scales": scales.T.contiguous(),
            },
            values,
        )


def float8_values(name, codes, factors, columns):
    """What a matrix of 8-bit floats is held as: bfloat16 where fewer columns share a scale or keys are turned."""
    values = codes.float() * factors
    as_halves = columns % 128 != 0 and columns < codes.shape[1] or name.endswith("kv_b_proj")
    return values.bfloat16().float() if as_halves else values


def float8(name, weight, block, dtype, kind=torch.float8_e4m3fn):
    """Codes, scales [blocks of rows, blocks of columns], and what they stand for."""
    rows, columns = (min(a, b) for a, b in zip(block, weight.shape))
    lines, groups = torch.arange(weight.shape[0]) // rows, torch.arange(weight.shape[1]) // columns
    where = (lines[:, None] * (int(groups.max()) + 1) + groups).flatten()
    count = (int(lines.max()) + 1) * (int(groups.max()) + 1)
    most = torch.zeros(count).scatter_reduce(0, where, weight.abs().flatten(), "amax")
    scales = (most / torch.finfo(kind).max).clamp(min=1e-9).to(dtype)
    factors = scales.float()[where].view(weight.shape)
    codes = to_float8(weight / factors, kind)
    return codes, scales.view(int(lines.max()) + 1, -1), float8_values(name, codes, factors, block[1])


class Float8(Camp):
    method = "fp8"

    def draw(self):
        self.kind = self.one("fp8", "fp8", "fp8", "fbgemm_fp8", "modelopt")
        self.block = self.one((128, 128), (128, 128), (64, 128), (128, 256), (32, 32), (64, 64), (16, 128), None, None)
        if self.kind != "fp8":
            self.block = None
        self.per = "block" if self.block else "channel" if self.kind == "fbgemm_fp8" else "tensor"
        self.dtype = FLOATS[self.one("float32", "float32", "bfloat16")]
        self.static = self.per == "tensor" and self.maybe(0.5)
        self.skipped = self.leave_whole()[1]

    def configuration(self):
        found = {"quant_method": self.kind}
        if self.kind == "modelopt":
            return found | {"quant_algo": "FP8", "ignore": self.skipped, "kv_cache_scheme": None}
        if self.kind == "fbgemm_fp8":
            return found | {"activation_scale_ub": 1200.0, "modules_to_not_convert": self.skipped}
        return found | {
            "activation_scheme": "static" if self.static else "dynamic",
            "fmt": "e4m3",
            "weight_block_size": list(self.block) if self.block else None,
            self.one("modules_to_not_convert", "ignored_layers"): self.skipped,
        }

    def store(self, name, weight, has_bias):
        is_turned = name in self.turned
        if self.is_whole(name) or is_turned and self.per != "tensor":
            return None
        block = self.block or ((1, 1 << 30) if self.per == "channel" else (1 << 30, 1 << 30))
        codes, scales, values = float8(name, weight, block, self.dtype)
        codes = codes.T.contiguous() if is_turned else codes
        if self.per == "tensor":
            scales = scales.view(self.one((), (1,)))
        ending = "weight_scale_inv" if self.block or self.kind == "fp8" and self.maybe(0.3) else "weight_scale"
        tensors = {f"{name}.weight": codes, f"{name}.{ending}": scales.contiguous()}
        if self.static:
            tensors[f"{name}.input_scale"] = torch.tensor(0.02)
        if self.kind == "fbgemm_fp8":
            tensors[f"{name}.input_scale_ub"] = torch.tensor([1200.0])
        return Stored(tensors, values)


class Scheme:
    """A group of compressed-tensors: how weights and inputs are told of, and what is stored."""

    def __init__(self, camp, targets):
        self.camp, self.targets = camp, targets
        one, maybe = camp.one, camp.maybe
        self.kind = one("pack", "pack", "pack", "int", "int", "float", "float", "nvfp4", "mxfp4")
        self.dtype = camp.floats()
        self.inputs, self.order, self.symmetric, self.group, self.block = None, None, True, None, None
        self.bits = {"pack": one(4, 4, 8), "nvfp4": 4, "mxfp4": 4}.get(self.kind, 8)
        if self.kind == "pack":
            self.per = one("group", "group", "channel", "tensor")
            self.group = one(16, 32, 32, 64, 128) if self.per == "group" else None
            self.symmetric = self.per == "tensor" or one(True, False)
            self.order = one(None, None, "group", "weight", "static", "dynamic") if self.per == "group" else None
            if maybe(0.15):
                self.inputs = {"dynamic": True, "symmetric": True, "strategy": "token"}
        elif self.kind == "int":
            self.per = one("channel", "channel", "tensor", "group")
            self.group = one(32, 64, 128) if self.per == "group" else None
            self.symmetric = maybe(0.7)
            self.inputs = self.draw_inputs()
        elif self.kind == "float":
            self.per = one("channel", "tensor", "block")
            self.block = one((128, 128), (64, 128), (64, 64)) if self.per == "block" else None
            self.inputs = one(
                None,
                {"dynamic": True, "strategy": "token"},
                {"dynamic": False, "strategy": "tensor"},
                {"dynamic": True, "strategy": "group", "group_size": 128},
            )
            if self.inputs:
                self.inputs["symmetric"] = True
        else:
            self.group = 16 if self.kind == "nvfp4" else 32
            self.per = "tensor_group" if self.kind == "nvfp4" else "group"
            self.rounds = self.kind == "nvfp4" and maybe(0.5)

    def draw_inputs(self):
        one = self.camp.one
        kind = one(None, "token", "token", "tensor", "tensor", "group")
        if kind is None:
            return None
        found = {"dynamic": kind != "tensor", "symmetric": one(True, False), "strategy": kind}
        return found | ({"group_size": one(32, 128)} if kind == "group" else {})

    def configuration(self):
        is_float = self.kind not in ("pack", "int")
        weights = {
            "num_bits": self.bits,
            "type": "float" if is_float else "int",
            "symmetric": self.symmetric,
            "dynamic": False,
            "strategy": self.per,
            "group_size": self.group,
            "actorder": self.order,
        }
        if self.block:
            weights["block_structure"] = list(self.block)
        inputs = (
            self.inputs and {"num_bits": 8, "type": "float" if is_float else "int", "group_size": None} | self.inputs
        )
        if self.kind == "nvfp4" and self.rounds:
            inputs = {
                "num_bits": 4,
                "type": "float",
                "symmetric": True,
                "dynamic": "local",
                "strategy": "tensor_group",
                "group_size": 16,
            }
        return {"targets": self.targets, "weights": weights, "input_activations": inputs, "output_activations": None}

    def format(self):
        return {
            "pack": "pack-quantized",
            "int": "int-quantized",
            "float": "float-quantized",
            "nvfp4": "nvfp4-pack-quantized",
            "mxfp4": "mxfp4-pack-quantized",
        }[self.kind]

    def fits(self, name, weight):
        columns = weight.shape[1]
        if self.group and columns % self.group or self.kind in ("nvfp4", "mxfp4") and columns % 2:
            return False
        return not (self.inputs and self.inputs.get("group_size") and columns % self.inputs["group_size"])

    def round_inputs(self, name, tensors):
        if not self.inputs:
            return None
        is_float, group = self.kind == "float", self.inputs.get("group_size") or 0
        symmetric = self.inputs["symmetric"]
        if self.inputs["dynamic"]:
            return rounding_float8(group=group) if is_float else rounding_int8(symmetric, group=group)
        # Experts' two inputs that are one matrix here have the same.
        number = 1 + sum(name.rsplit(".", 1)[0].encode()) % 7
        scale, zero = (0.004 if is_float else 0.02) * number, 0 if symmetric else number * 9 - 30
        tensors[f"{name}.input_scale"] = torch.tensor([scale]).to(self.dtype)
        if not is_float and (not symmetric or self.camp.maybe(0.3)):
            tensors[f"{name}.input_zero_point"] = torch.tensor([zero], dtype=torch.int8)
        scale = tensors[f"{name}.input_scale"].float().item()
        return rounding_float8(scale) if is_float else rounding_int8(symmetric, scale, zero)

    def store(self, name, weight):
        # Of what a family keeps transposed the library has codes with one scale, or leaves it.
        is_turned = name in self.camp.turned
        if not self.fits(name, weight) or is_turned and (self.kind not in ("int", "float") or self.per != "tensor"):
            return None
        tensors = {}
        values = getattr(self, f"store_{self.kind}")(name, weight, tensors)
        if is_turned:
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"].T.contiguous()
        rounding = self.round_inputs(name, tensors)
        if self.kind == "nvfp4" and self.rounds:
            shared = 448 * 6 / 5.0
            tensors[f"{name}.input_global_scale"] = torch.tensor([shared])
            rounding = rounding_float4(tensors[f"{name}.input_global_scale"].item())
        return Stored(tensors, values, rounding)

    def coded(self, name, weight, index, tensors):
        if self.per == "tensor":
            codes, zeros, scales, values = rounded(
                weight.reshape(1, -1), groups_of(weight.numel(), 0), self.bits, self.symmetric, self.dtype
            )
            codes, values = codes.view(weight.shape), values.view(weight.shape)
            scales, zeros = scales.view(1), zeros.view(1)
        else:
            codes, zeros, scales, values = rounded(weight, index, self.bits, self.symmetric, self.dtype)
        tensors[f"{name}.weight_scale"] = scales
        return codes, zeros, values

    def store_pack(self, name, weight, tensors):
        index = groups_of(weight.shape[1], self.group or 0)
        if self.order in ("group", "dynamic"):
            index = index[torch.randperm(weight.shape[1], generator=self.camp.torch_rng)]
            tensors[f"{name}.weight_g_idx"] = index.to(torch.int32)
        elif self.order and self.camp.maybe(0.5):
            tensors[f"{name}.weight_g_idx"] = torch.full((weight.shape[1],), -1, dtype=torch.int32)  # never set
        codes, zeros, values = self.coded(name, weight, index, tensors)
        tensors[f"{name}.weight_packed"] = packed(codes, self.bits, 1)
        tensors[f"{name}.weight_shape"] = torch.tensor(
            weight.shape, dtype=self.camp.one(torch.int64, torch.int64, torch.int32)
        )
        if not self.symmetric:
            tensors[f"{name}.weight_zero_point"] = packed(zeros, self.bits, 0)
        return values

    def store_int(self, name, weight, tensors):
        codes, zeros, values = self.coded(name, weight, groups_of(weight.shape[1], self.group or 0), tensors)
        tensors[f"{name}.weight"] = (codes - 128).to(torch.int8)
        if not self.symmetric or self.camp.maybe(0.2):
            tensors[f"{name}.weight_zero_point"] = (zeros - 128).to(torch.int8)
        return values

    def store_float(self, name, weight, tensors):
        block = self.block or ((1, 1 << 30) if self.per == "channel" else (1 << 30, 1 << 30))
        codes, scales, values = float8(
            name, weight, block, self.dtype if self.dtype != torch.float16 else torch.float32
        )
        tensors[f"{name}.weight"] = codes
        tensors[f"{name}.weight_scale"] = scales.view(1) if self.per == "tensor" else scales
        return values

    def store_nvfp4(self, name, weight, tensors):
        parts, values = nvfp4(weight)
        tensors |= zip((f"{name}.weight_packed", f"{name}.weight_scale", f"{name}.weight_global_scale"), parts)
        return values

    def store_mxfp4(self, name, weight, tensors):
        (tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]), values = mxfp4(weight)
        return values


def halves(codes):
    """Two codes a byte, the first in the lower half."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).contiguous()


def nvfp4(weight):
    """Codes, scales of groups and the shared number, by which those were multiplied; and what they stand for."""
    shared = torch.tensor([448 * 6 / weight.abs().max().clamp(min=1e-6).item()])
    parts = weight.unflatten(1, (-1, 16))
    scales = to_float8((parts.abs().amax(-1, keepdim=True) / 6 * shared).clamp(min=2**-9))
    codes = fp4_codes(parts * shared / scales.float())
    values = fp4_numbers(codes) * scales.float() * (1 / shared)
    return (halves(codes.flatten(1)), scales.squeeze(-1).contiguous(), shared), values.flatten(1)


def mxfp4(weight):
    """Codes and exponents of groups; and what they stand for."""
    parts = weight.unflatten(1, (-1, 32))
    exponents = torch.floor(torch.log2(parts.abs().amax(-1, keepdim=True).clamp(min=1e-9))) - 2
    codes = fp4_codes(parts / torch.exp2(exponents))
    values = (fp4_numbers(codes) * torch.exp2(exponents)).flatten(1)
    return (halves(codes.flatten(1)), (exponents.squeeze(-1) + 127).to(torch.uint8)), values


class CompressedTensors(Camp):
    method = "compressed-tensors"

    def draw(self):
        self.ignored, skipped = self.leave_whole()
        self.schemes = []
        if self.maybe(0.4):
            self.schemes.append(
                Scheme(self, [self.one(f"re:{self.expression()}", self.name()) for _ in range(self.rng.randint(1, 2))])
            )
        self.schemes.append(Scheme(self, ["Linear"]))
        self.mixed = len({scheme.format() for scheme in self.schemes}) > 1
        self.skipped = [name for name in self.modules if name.endswith("lm_head")]
        self.skipped += [f"re:{one}" for one in self.ignored] if self.maybe(0.5) else skipped

    def configuration(self):
        groups = {f"group_{i}": scheme.configuration() for i, scheme in enumerate(self.schemes)}
        for scheme, group in zip(self.schemes, groups.values()):
            if self.mixed or self.maybe(0.5):
                group["format"] = scheme.format()
        found = {
            "config_groups": groups,
            "ignore": self.skipped,
            "quant_method": self.method,
            "format": "mixed-precision" if self.mixed else self.schemes[0].format(),
            "kv_cache_scheme": None,
            "quantization_status": self.one("compressed", "frozen"),
            "sparsity_config": {},
            "transform_config": {},
        }
        return found

    def scheme_of(self, name):
        for scheme in self.schemes[:-1]:
            if any(
                re.match(target[3:], name) if target.startswith("re:") else target == name for target in scheme.targets
            ):
                return scheme
        return self.schemes[-1]

    def store(self, name, weight, has_bias):
        if self.is_whole(name):
            return None
        return self.scheme_of(name).store(name, weight)
