// What instruction sets the processor and the operating system offer to this process.
#pragma once

namespace quire {

struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool bmi2 = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx512vnni = false;
  bool avx512bf16 = false;
};

// Asks the processor. All false on other architectures than x86-64.
CpuFeatures detect_cpu_features();

}  // namespace quire
