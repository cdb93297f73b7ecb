#include "runner/dense_layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "checkpoint/text_quote.h"

namespace quire::runner {
namespace {

struct NamedFunction {
  std::string_view name;
  double (*function)(double);
};
constexpr NamedFunction kFunctions[] = {
    {"Identity", [](double x) { return x; }},
    {"Tanh", [](double x) { return std::tanh(x); }},
    {"ReLU", [](double x) { return std::max(x, 0.0); }},
    {"GELU", [](double x) { return x * 0.5 * std::erfc(-x / std::numbers::sqrt2); }},
    {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
    {"SiLU", [](double x) { return x / (1 + std::exp(-x)); }},
};

void add_input(const checkpoint::DenseModule& module, const std::vector<float>& in, std::vector<float>& out) {
  const float* row = module.residual.data();
  for (size_t n = 0; n < out.size(); ++n) {
    if (module.residual.empty()) {
      out[n] += in[n];
      continue;
    }
    double sum = 0;
    for (size_t k = 0; k < in.size(); ++k) sum += static_cast<double>(row[k]) * static_cast<double>(in[k]);
    out[n] += static_cast<float>(sum);
    row += in.size();
  }
}

}  // namespace

Result<std::shared_ptr<const DenseLayers>> DenseLayers::make(std::vector<checkpoint::DenseModule> modules,
                                                             int64_t size) {
  if (modules.empty()) return std::shared_ptr<const DenseLayers>();
  auto layers = std::make_shared<DenseLayers>();
  for (checkpoint::DenseModule& module : modules) {
    if (module.in_features != size) {
      return data_loss("a Dense module takes {} numbers, expected {}", module.in_features, size);
    }
    size = module.out_features;
    // Tanh is what the module itself takes where nothing is said.
    const std::string_view activation = module.activation.empty() ? "Tanh" : std::string_view(module.activation);
    const std::string_view last = activation.substr(activation.rfind('.') + 1);
    const auto* const found = std::ranges::find(kFunctions, last, &NamedFunction::name);
    if (found == std::end(kFunctions)) {
      return unimplemented(
          "a Dense module's activation {} is not built yet; built: Identity, Tanh, ReLU, GELU, "
          "Sigmoid, SiLU",
          checkpoint::in_quotes(activation));
    }
    layers->layers_.push_back({std::move(module), found->function});
  }
  return std::shared_ptr<const DenseLayers>(std::move(layers));
}

std::vector<float> DenseLayers::apply(std::vector<float> vector) const {
  for (const Layer& layer : layers_) {
    std::vector<float> out(static_cast<size_t>(layer.module.out_features));
    const float* row = layer.module.weight.data();
    for (size_t n = 0; n < out.size(); ++n, row += vector.size()) {
      double sum = layer.module.bias.empty() ? 0 : static_cast<double>(layer.module.bias[n]);
      for (size_t k = 0; k < vector.size(); ++k) sum += static_cast<double>(row[k]) * static_cast<double>(vector[k]);
      out[n] = static_cast<float>(layer.activation(sum));
    }
    if (layer.module.adds_input) add_input(layer.module, vector, out);
    vector = std::move(out);
  }
  return vector;
}

int64_t DenseLayers::bytes() const {
  size_t numbers = 0;
  for (const Layer& layer : layers_) {
    numbers += layer.module.weight.size() + layer.module.bias.size() + layer.module.residual.size();
  }
  return static_cast<int64_t>(numbers * sizeof(float));
}

}  // namespace quire::runner
