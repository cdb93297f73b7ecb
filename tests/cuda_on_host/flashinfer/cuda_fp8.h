// Names of numbers of 8 bits: FlashInfer's kernels move them about and widen them by their bits alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

#define QUIRE_NAMES_OF_8_BITS(format)             \
  struct __nv_fp8_##format {                      \
    __nv_fp8_storage_t __x;                       \
    __nv_fp8_##format() = default;                \
    explicit __nv_fp8_##format(float);            \
    explicit operator float() const;              \
    explicit operator __half() const;             \
    explicit operator __nv_bfloat16() const;      \
  };                                              \
  struct __nv_fp8x2_##format {                    \
    __nv_fp8x2_storage_t __x;                     \
    __nv_fp8x2_##format() = default;              \
    explicit __nv_fp8x2_##format(float2);         \
    explicit __nv_fp8x2_##format(__half2);        \
    explicit __nv_fp8x2_##format(__nv_bfloat162); \
    explicit operator float2() const;             \
    explicit operator __half2() const;            \
  };                                              \
  struct __nv_fp8x4_##format {                    \
    __nv_fp8x4_storage_t __x;                     \
    __nv_fp8x4_##format() = default;              \
    explicit __nv_fp8x4_##format(float4);         \
    explicit operator float4() const;             \
  };
QUIRE_NAMES_OF_8_BITS(e4m3)
QUIRE_NAMES_OF_8_BITS(e5m2)
#undef QUIRE_NAMES_OF_8_BITS
__nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2, __nv_saturation_t, __nv_fp8_interpretation_t);
