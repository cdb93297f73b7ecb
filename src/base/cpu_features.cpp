#include "base/cpu_features.h"

namespace quire {

CpuFeatures detect_cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") != 0;
  features.fma = __builtin_cpu_supports("fma") != 0;
  features.f16c = __builtin_cpu_supports("f16c") != 0;
  features.bmi2 = __builtin_cpu_supports("bmi2") != 0;
  features.avx512f = __builtin_cpu_supports("avx512f") != 0;
  features.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  features.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  features.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
  features.avx512vnni = __builtin_cpu_supports("avx512vnni") != 0;
  features.avx512bf16 = __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return features;
}

}  // namespace quire
