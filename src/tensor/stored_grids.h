// What the formats IQ1, IQ2 and IQ3 mean: value i of a block. Layouts: tensor/dtype.h.
#pragma once

#include <cstdint>

namespace quire {

float iq2_xxs(const uint8_t* block, int64_t i);
float iq2_xs(const uint8_t* block, int64_t i);
float iq2_s(const uint8_t* block, int64_t i);
float iq3_xxs(const uint8_t* block, int64_t i);
float iq3_s(const uint8_t* block, int64_t i);
float iq1_s(const uint8_t* block, int64_t i);
float iq1_m(const uint8_t* block, int64_t i);

}  // namespace quire
