#include "ops/cpu/isa_kernels.h"

#define QUIRE_ISA_NAME_INNER(isa) #isa
#define QUIRE_ISA_NAME(isa) QUIRE_ISA_NAME_INNER(isa)

namespace quire::ops::cpu::QUIRE_ISA {

// In DType's order: F32, F16, BF16, I32, I64, Q4_0, Q4_1, Q8_0; none for I8 and the F8s.
extern const Kernels kKernels = {
    .name = QUIRE_ISA_NAME(QUIRE_ISA),
    .linear = {linear_f32, linear_f16, linear_bf16, nullptr, nullptr, linear_q4_0, linear_q4_1, linear_q8_0},
    .dequantise = {dequantise_f32, dequantise_f16, dequantise_bf16, nullptr, nullptr, dequantise_q4_0, dequantise_q4_1,
                   dequantise_q8_0},
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_and_mul = silu_and_mul,
    .kv_write = kv_write,
    .attention = attention,
    .attention_fold = attention_fold,
    .attention_finish = attention_finish,
};

}  // namespace quire::ops::cpu::QUIRE_ISA
