#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_math.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

QUIRE_INLINE FW clamped_gate(FW gate, FW up, float alpha, float limit) {
  const FW most = broadcast_wide(limit);
  gate = gate > most ? most : gate;
  up = up > most ? most : up;
  up = up < -most ? -most : up;
  return (up + 1.0f) * (gate / (exp(gate * -alpha) + 1.0f));
}

}  // namespace

void clamped_swiglu(const float* gate, const float* up, float alpha, float limit, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide)
    store_wide(out + i, clamped_gate(load_wide(gate + i), load_wide(up + i), alpha, limit));
  const int64_t rest = size - i;
  if (rest > 0)
    store_some(out + i, clamped_gate(load_some(gate + i, rest), load_some(up + i, rest), alpha, limit), rest);
}

void moe_combine(const MoeCombineWork& work, int64_t size, float* out) {
  const auto add = [&](int64_t i, auto&& read) {
    FW total = FW{};
    for (int32_t r = 0; r < work.experts_per_token; ++r)
      total = fma(broadcast_wide(work.weights[r]), read(work.experts + work.rows[r] * size + i), total);
    if (work.shared != nullptr) total = fma(broadcast_wide(work.shared_weight), read(work.shared + i), total);
    return total;
  };
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide) store_wide(out + i, add(i, [](const float* p) { return load_wide(p); }));
  const int64_t rest = size - i;
  if (rest > 0) store_some(out + i, add(i, [rest](const float* p) { return load_some(p, rest); }), rest);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
