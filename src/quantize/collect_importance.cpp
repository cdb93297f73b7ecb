#include "quantize/collect_importance.h"

#include <fmt/format.h>

namespace quire::quantize {

Result<ImportanceMatrix> collect_importance(LayerWalk& walk, const Progress& progress) {
  ImportanceMatrix matrix;
  const ImportanceObserver observer(matrix);
  QUIRE_RETURN_IF_ERROR(walk.embed());
  for (int32_t layer = 0; layer < walk.num_layers(); ++layer) {
    progress(fmt::format("importance of {} tokens: layer {} of {}", walk.num_tokens(), layer + 1, walk.num_layers()));
    QUIRE_RETURN_IF_ERROR(walk.run_layer(layer, nullptr, &observer, /*moves_on=*/true));
  }
  QUIRE_RETURN_IF_ERROR(walk.finish([&](const ops::ConstView& x) { matrix.add("lm_head", x); }));
  return matrix;
}

}  // namespace quire::quantize
