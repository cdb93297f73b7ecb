#include "ops/packed_matrix.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

PackedGroup::PackedGroup(std::vector<const PackedMatrix*> matrices) : matrices_(std::move(matrices)) {
  QUIRE_CHECK(!matrices_.empty());
  const PackedMatrix& first = *matrices_.front();
  for (const PackedMatrix* matrix : matrices_) {
    QUIRE_CHECK_MSG(
        matrix->dtype() == first.dtype() && matrix->rows() == first.rows() && matrix->columns() == first.columns(),
        fmt::format("a group of {} [{}, {}] and {} [{}, {}]", name(first.dtype()), first.rows(), first.columns(),
                    name(matrix->dtype()), matrix->rows(), matrix->columns()));
  }
}

}  // namespace quire::ops
