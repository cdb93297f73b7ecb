#include "ops/cpu/isa_kernels.h"

#define QUIRE_ISA_NAME_INNER(isa) #isa
#define QUIRE_ISA_NAME(isa) QUIRE_ISA_NAME_INNER(isa)

namespace quire::ops::cpu::QUIRE_ISA {

// In DType's order: F32, F16, BF16, I32, I64, Q4_0, Q4_1, Q8_0, I8, two F8s, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS.
extern const Kernels kKernels = {
    .name = QUIRE_ISA_NAME(QUIRE_ISA),
    .linear = {{linear_f32,  linear_f16,  linear_bf16, nullptr,     nullptr,       linear_q4_0,  linear_q4_1,
                linear_q8_0, nullptr,     nullptr,     nullptr,     linear_q5_0,   linear_q5_1,  linear_q2_k,
                linear_q3_k, linear_q4_k, linear_q5_k, linear_q6_k, linear_iq4_nl, linear_iq4_xs},
               {nullptr,           nullptr,           nullptr,           nullptr,           nullptr,
                linear_bytes_q4_0, linear_bytes_q4_1, nullptr,           nullptr,           nullptr,
                nullptr,           linear_bytes_q5_0, linear_bytes_q5_1, linear_bytes_q2_k, linear_bytes_q3_k,
                linear_bytes_q4_k, linear_bytes_q5_k, linear_bytes_q6_k, nullptr,           nullptr},
               {nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                linear_words_q4_0,
                linear_words_q4_1,
                linear_words_q8_0,
                nullptr,
                nullptr,
                nullptr,
                linear_words_q5_0,
                linear_words_q5_1,
                linear_words_q2_k,
                linear_words_q3_k,
                linear_words_q4_k,
                linear_words_q5_k,
                linear_words_q6_k,
                linear_words_iq4_nl,
                linear_words_iq4_xs}},
    .code_row = {{},
                 {nullptr,         nullptr,         nullptr,         nullptr,         nullptr,
                  code_bytes_q4_0, code_bytes_q4_1, nullptr,         nullptr,         nullptr,
                  nullptr,         code_bytes_q5_0, code_bytes_q5_1, code_bytes_q2_k, code_bytes_q3_k,
                  code_bytes_q4_k, code_bytes_q5_k, code_bytes_q6_k, nullptr,         nullptr},
                 {nullptr,         nullptr,         nullptr,         nullptr,           nullptr,
                  code_words_q4_0, code_words_q4_1, code_words_q8_0, nullptr,           nullptr,
                  nullptr,         code_words_q5_0, code_words_q5_1, code_words_q2_k,   code_words_q3_k,
                  code_words_q4_k, code_words_q5_k, code_words_q6_k, code_words_iq4_nl, code_words_iq4_xs}},
    .dequantise = {dequantise_f32,  dequantise_f16,  dequantise_bf16, nullptr,           nullptr,
                   dequantise_q4_0, dequantise_q4_1, dequantise_q8_0, nullptr,           nullptr,
                   nullptr,         dequantise_q5_0, dequantise_q5_1, dequantise_q2_k,   dequantise_q3_k,
                   dequantise_q4_k, dequantise_q5_k, dequantise_q6_k, dequantise_iq4_nl, dequantise_iq4_xs},
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_and_mul = silu_and_mul,
    .kv_write = kv_write,
    .attention = attention,
    .attention_fold = attention_fold,
    .attention_finish = attention_finish,
};

}  // namespace quire::ops::cpu::QUIRE_ISA
