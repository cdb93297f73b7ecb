#include "ops/cpu/isa.h"

#include <iterator>

#include "base/cpu_features.h"

namespace quire::ops::cpu {
namespace {

struct InstructionSet {
  std::string_view name;
  const Kernels& (*kernels)();
  std::string_view needs;  // for people
  bool (*runs_on)(const CpuFeatures& features);
};

[[maybe_unused]] bool has_avx512(const CpuFeatures& f) {
  return f.avx2 && f.fma && f.f16c && f.bmi2 && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl && f.avx512vnni;
}

// Best first.
const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512_bf16", avx512::bfloat16_kernels, "AVX-512 BF16 beside what avx512 needs",
     [](const CpuFeatures& f) { return has_avx512(f) && f.avx512bf16; }},
    {"avx512", avx512::kernels, "AVX-512 F, BW, DQ, VL and VNNI beside AVX2, FMA, F16C and BMI2", has_avx512},
    {"avx2", avx2::kernels, "AVX2, FMA, F16C and BMI2",
     [](const CpuFeatures& f) { return f.avx2 && f.fma && f.f16c && f.bmi2; }},
#endif
    {"portable", portable::kernels, "nothing", [](const CpuFeatures&) { return true; }},
};

}  // namespace

Result<const Kernels*> select_kernels(std::string_view isa) {
  const CpuFeatures features = detect_cpu_features();
  std::string known;
  for (const InstructionSet& set : kInstructionSets) {
    known += fmt::format(", {}", set.name);
    const bool runs = set.runs_on(features);
    if (isa == "auto" && runs) return &set.kernels();
    if (isa != set.name) continue;
    if (runs) return &set.kernels();
    return unavailable("instruction set {}: this machine lacks it (needed: {}); choose auto", isa, set.needs);
  }
  return invalid_argument("instruction set \"{}\" is not known: expected auto{}", isa, known);
}

}  // namespace quire::ops::cpu
