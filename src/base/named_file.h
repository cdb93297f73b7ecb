// Files that a person names, looked at before they are read or written: a stream opens a directory too and finds
// nothing in it, and waits for ever for the other end of a pipe.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

enum class FileUse {
  kReadOnce,   // a pipe will do
  kReadAgain,  // more than once, or from anywhere
  kWrite,      // a file that is there, or may be made
};

// Errors: not_found: there is none (of kWrite, no directory to put it in); invalid_argument: a directory, a pipe or a
// device where a file is needed, or one that may not be read or written. The messages name the path.
Status check_file(const std::string& path, FileUse use);

}  // namespace quire
