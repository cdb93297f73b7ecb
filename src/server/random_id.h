// Names for what a server makes: nobody can guess another's.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

// The prefix and 128 random bits as 32 hexadecimal digits.
std::string random_id(std::string_view prefix = {});

}  // namespace quire::server
