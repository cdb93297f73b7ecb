// Copies into memory that another core reads next.
#pragma once

#include <cstddef>

namespace quire::comm {

// Where it is long it goes past this core's caches: to take the lines back from the core that has read the last message
// out of them costs more than the copy. Ordered before whatever is stored afterwards.
void copy_to_shared(const void* from, void* to, size_t bytes);

}  // namespace quire::comm
