// The formats of coded weights (tensor/dtype.h), for whatever has to be said of each.
#pragma once

#define QUIRE_CODED_FORMATS(each)                                                                               \
  each(kU4_32) each(kU4_64) each(kU4_128) each(kU4_32_F32) each(kI8_32) each(kI8_128) each(kI8_32_Z) each(kNF4) \
      each(kFP4) each(kU4_64_HZ) each(kU4_32_FZ) each(kI8_64_HZ)
