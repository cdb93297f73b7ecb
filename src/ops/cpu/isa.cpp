#include "ops/cpu/isa.h"

#include <iterator>
#include <string>

#include "base/cpu_features.h"

namespace quire::ops::cpu {
namespace {

using KernelTable = const Kernels& (*)();

// What this build has (QUIRE_ISAS); nullptr: nothing of this set.
#ifdef QUIRE_BUILT_PORTABLE
constexpr KernelTable kPortable = portable::kernels;
#else
constexpr KernelTable kPortable = nullptr;
#endif
#ifdef QUIRE_BUILT_AVX2
constexpr KernelTable kAvx2 = avx2::kernels;
#else
[[maybe_unused]] constexpr KernelTable kAvx2 = nullptr;
#endif
#ifdef QUIRE_BUILT_AVX512
constexpr KernelTable kAvx512 = avx512::kernels;
constexpr KernelTable kAvx512Bfloat16 = avx512::bfloat16_kernels;
#else
[[maybe_unused]] constexpr KernelTable kAvx512 = nullptr;
[[maybe_unused]] constexpr KernelTable kAvx512Bfloat16 = nullptr;
#endif

struct InstructionSet {
  Isa isa;
  KernelTable kernels;
  std::string_view needs;  // for people
  bool (*runs_on)(const CpuFeatures& features);
};

[[maybe_unused]] bool has_avx512(const CpuFeatures& f) {
  return f.avx2 && f.fma && f.f16c && f.bmi2 && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl && f.avx512vnni;
}

// Best first.
const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {Isa::kAvx512Bf16, kAvx512Bfloat16, "AVX-512 BF16 beside what avx512 needs",
     [](const CpuFeatures& f) { return has_avx512(f) && f.avx512bf16; }},
    {Isa::kAvx512, kAvx512, "AVX-512 F, BW, DQ, VL and VNNI beside AVX2, FMA, F16C and BMI2", has_avx512},
    {Isa::kAvx2, kAvx2, "AVX2, FMA, F16C and BMI2",
     [](const CpuFeatures& f) { return f.avx2 && f.fma && f.f16c && f.bmi2; }},
#endif
    {Isa::kPortable, kPortable, "nothing", [](const CpuFeatures&) { return true; }},
};

}  // namespace

Result<const Kernels*> select_kernels(Isa isa) {
  const CpuFeatures features = detect_cpu_features();
  std::string built;
  for (const InstructionSet& set : kInstructionSets) {
    const bool runs = set.runs_on(features);
    const bool is_built = set.kernels != nullptr;
    if (is_built) built += fmt::format("{}{}", built.empty() ? "" : ", ", name(set.isa));
    if (isa == Isa::kAuto && runs && is_built) return &set.kernels();
    if (isa != set.isa) continue;
    if (!runs) {
      return unavailable("instruction set {}: this machine lacks it (needed: {}); choose auto", name(isa), set.needs);
    }
    if (!is_built) {
      return unavailable(
          "instruction set {}: this build has no kernels for it; choose auto, or build with -DQUIRE_ISAS=all",
          name(isa));
    }
    return &set.kernels();
  }
  if (isa == Isa::kAuto) {
    return unavailable("this machine runs none of the instruction sets of this build ({}): build with -DQUIRE_ISAS=all",
                       built);
  }
  return unavailable("instruction set {}: this machine's architecture has none of that name; choose auto", name(isa));
}

}  // namespace quire::ops::cpu
