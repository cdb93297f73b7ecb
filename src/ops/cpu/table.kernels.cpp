#include "ops/cpu/isa_kernels.h"

#define QUIRE_ISA_NAME_INNER(isa) #isa
#define QUIRE_ISA_NAME(isa) QUIRE_ISA_NAME_INNER(isa)

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

Kernels make_kernels() {
  Kernels kernels = {
      .name = QUIRE_ISA_NAME(QUIRE_ISA),
      .coarse_lattice = lattice_is_coarse(),
      .quantise = quantise,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .rope = rope,
      .activate = activate,
      .add = add,
      .scale = scale,
      .convolve = convolve,
      .recurrence = recurrence,
      .xielu = xielu,
      .clamped_swiglu = clamped_swiglu,
      .moe_combine = moe_combine,
      .low_rank_shrink = low_rank_shrink,
      .low_rank_expand = low_rank_expand,
      .kv_write = kv_write,
      .attention = attention,
      .attention_fold = attention_fold,
      .attention_finish = attention_finish,
  };
  for (int format = 0; format < kNumFormats; ++format) {
    const auto dtype = static_cast<DType>(format);
    kernels.linear[kFloatRows][format] = float_linear(dtype);
    for (const Activations activations : {kByteRows, kWordRows}) {
      kernels.linear[activations][format] = whole_number_linear(activations, dtype);
      kernels.code_row[activations][format] = whole_number_code_row(activations, dtype);
      kernels.code_own_row[activations][format] = whole_number_code_own_row(activations, dtype);
    }
    kernels.linear[kLatticeRows][format] = lattice_linear(dtype);
    kernels.code_row[kLatticeRows][format] = lattice_code_row(dtype);
    kernels.dequantise[format] = dequantise_kernel(dtype);
  }
  constexpr auto kBF16 = static_cast<size_t>(DType::kBF16);
  kernels.linear[kBFloat16Rows][kBF16] = linear_pairs;
  kernels.code_row[kBFloat16Rows][kBF16] = code_pairs;
  return kernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels table = make_kernels();
  return table;
}

#if defined(__AVX512F__)
const Kernels& bfloat16_kernels() {
  static const Kernels table = [] {
    Kernels kernels = make_kernels();
    kernels.name = "avx512_bf16";
    kernels.native_bfloat16 = true;
    kernels.linear[kBFloat16Rows][static_cast<size_t>(DType::kBF16)] = linear_native_pairs;
    return kernels;
  }();
  return table;
}
#endif

}  // namespace quire::ops::cpu::QUIRE_ISA
