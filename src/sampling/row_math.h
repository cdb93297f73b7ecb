// Passes over a row of logits, four elements at a time in the compiler's generic vectors, which every
// instruction set has or imitates. Lanes are joined in a fixed order, so a row always gives the same bits.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "sampling/scratch.h"
#include "types/ids.h"

namespace quire::sampling {

struct RowMaximum {
  float value;  // -inf when there is no larger one
  bool finite;  // no NaN and no +inf anywhere, and value > -inf
};
RowMaximum row_maximum(std::span<const float> row);

// The error of a row whose maximum is not finite.
Status not_finite();

// The place of the first element equal to `value`, which must be there.
size_t first_equal(std::span<const float> row, float value);

size_t count_greater(std::span<const float> row, float value);

// e^x for x <= 0 to about 1 unit in the last place; exactly 1 at 0, and 0 below -87 (Cody-Waite reduction,
// polynomial).
float exp_nonpositive(float x);

// sum of e^(row[i] - maximum), in double.
double sum_exp(std::span<const float> row, float maximum);

// Of the elements above -inf, shifted by the maximum: how many, their sum and the sum of their squares.
struct ShiftedMoments {
  double count;
  double sum;
  double sum_of_squares;
};
ShiftedMoments shifted_moments(std::span<const float> row, float maximum);

// Of the same: how many, sum of e^s and sum of s * e^s, s being the shifted element.
struct ShiftedWeights {
  double count;
  double sum;
  double weighted_sum;
};
ShiftedWeights shifted_weights(std::span<const float> row, float maximum);

// sum of weights[i] * values[i]; values of weight 0 do not count whatever they are.
double weighted_sum(std::span<const float> weights, std::span<const float> values);

// Elements below `least` become -inf.
void drop_below(std::span<float> row, float least);

inline constexpr size_t kWeightBlock = 512;

// row[i] <- e^((row[i] - maximum) * inverse_temperature), or 0 where that is below `least`. Returns the sum of the
// weights; block_sums gets those of each kWeightBlock of them.
double replace_by_weights(std::span<float> row, float maximum, float inverse_temperature, float least,
                          std::vector<double>& block_sums);

// The sum of all weights, and those of each kWeightBlock of them.
double sum_weights(std::span<float> weights, std::vector<double>& block_sums);

// Weights below `least` become 0. Returns the sum of the rest and renews block_sums.
double drop_weights_below(std::span<float> weights, float least, std::vector<double>& block_sums);

// The `count` largest elements above -inf (fewer if there are no more) in falling order, equal ones by rising place.
// Linear in the row plus a partial sort of what is selected.
void select_largest(std::span<const float> row, size_t count, std::vector<Candidate>& selected);

// The least likely token of the nucleus: in falling order of weight (rising id among equals) the first
// at which the running sum reaches top_p * total. weights: of replace_by_weights, whose sum is `total`.
// Linear: weights are summed by magnitude, and only those near the cut are sorted.
Candidate nucleus_cut(std::span<const float> weights, double total, float top_p, SamplingScratch& scratch);

// Sets the weights of tokens less likely than `cut` to 0. Returns the sum of the rest and renews block_sums.
double drop_less_likely(std::span<float> weights, const Candidate& cut, std::vector<double>& block_sums);

// The elements that are at least `least`, by rising place; false, and how many is not said, if they are more than
// `most`.
bool gather_at_least(std::span<const float> row, float least, size_t most, std::vector<Candidate>& candidates);

// All but the `count` largest elements (lower places first among equals) become -inf. Linear.
void keep_largest(std::span<float> row, size_t count, std::vector<Candidate>& candidates);

// Adds to `candidates` the elements equal to `value` at places after `after`, in rising order.
void append_equal_after(std::span<const float> row, float value, TokenId after, std::vector<Candidate>& candidates);

// Falling value, then rising id.
inline bool more_likely(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

}  // namespace quire::sampling
