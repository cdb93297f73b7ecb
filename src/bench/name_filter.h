// Which kernels are to be measured.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace quire::bench {

class NameFilter {
 public:
  // A regular expression (PCRE2) that is found in the names that match; empty: all do. Errors: invalid_argument.
  static Result<NameFilter> compile(const std::string& expression);
  bool matches(const std::string& name) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace quire::bench
