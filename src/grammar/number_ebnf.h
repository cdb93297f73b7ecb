// Numbers within bounds, digit by digit.
#pragma once

#include <optional>
#include <string>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::grammar {

struct NumberBounds {
  const boost::json::value* minimum = nullptr;
  const boost::json::value* maximum = nullptr;
  const boost::json::value* exclusive_minimum = nullptr;
  const boost::json::value* exclusive_maximum = nullptr;

  bool any() const {
    return minimum != nullptr || maximum != nullptr || exclusive_minimum != nullptr || exclusive_maximum != nullptr;
  }
};

// An expression in EBNF for the integers, or the decimal numbers without exponent, within the bounds and, where it is
// given, multiples of multiple_of. A side without a bound ends where doubles no longer tell integers apart, or before.
// Every number that matches satisfies the bounds also after it is rounded to a double. Rules that the expression needs
// are appended to `rules`, their names beginning with `name`.
// Errors: invalid_argument: nothing is within them, or it cannot be written down exactly.
// REQUIRES: bounds are finite numbers; multiple_of >= 1 and only with integers.
Result<std::string> number_ebnf(const NumberBounds& bounds, bool integer, std::optional<int64_t> multiple_of,
                                const std::string& name, std::string& rules);

}  // namespace quire::grammar
