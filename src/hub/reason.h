// Why a call of the operating system failed, in words.
#pragma once

#include <string>
#include <system_error>

namespace quire::hub {

// error: an errno.
inline std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace quire::hub
