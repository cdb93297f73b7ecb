// The importance matrix of a model, collected from a text.
#pragma once

#include <functional>
#include <string>

#include "quantize/importance.h"
#include "quantize/layer_walk.h"

namespace quire::quantize {

// A line for people.
using Progress = std::function<void(const std::string&)>;

// Runs the walk's windows through all layers. REQUIRES: the walk has not begun.
Result<ImportanceMatrix> collect_importance(LayerWalk& walk, const Progress& progress);

}  // namespace quire::quantize
