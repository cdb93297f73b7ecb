// Parameters with the constraint that the answer must have.
#pragma once

#include <memory>
#include <utility>

#include "types/sampling_params.h"
#include "types/token_constraint.h"

namespace quire::sampling {

struct ConstrainedParams : SamplingParams {
  ConstrainedParams() = default;
  ConstrainedParams(SamplingParams params, std::shared_ptr<const TokenMasks> constraint_of_answer = nullptr)
      : SamplingParams(std::move(params)), constraint(std::move(constraint_of_answer)) {}

  std::shared_ptr<const TokenMasks> constraint;  // nullptr: any
};

}  // namespace quire::sampling
