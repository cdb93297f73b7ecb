// Parameters with the form that the answer must have.
#pragma once

#include <memory>
#include <utility>

#include "types/sampling_params.h"
#include "types/token_constraint.h"

namespace quire::sampling {

struct FormedParams : SamplingParams {
  FormedParams() = default;
  FormedParams(SamplingParams params, std::shared_ptr<const TokenMasks> its_form = nullptr)
      : SamplingParams(std::move(params)), form(std::move(its_form)) {}

  std::shared_ptr<const TokenMasks> form;  // nullptr: any
};

}  // namespace quire::sampling
