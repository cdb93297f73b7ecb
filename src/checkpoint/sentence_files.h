// What sentence-transformers wrote beside a model: what is made of its hidden states.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::checkpoint {

class ModelDirectory;

// A Dense module: what follows the pooling, activation(weight * vector + bias) and, with a residual, what it was given.
struct DenseModule {
  int64_t in_features = 0;
  int64_t out_features = 0;
  std::string activation;     // as torch calls it: "torch.nn.modules.activation.Tanh"
  std::vector<float> weight;  // [out_features, in_features]
  std::vector<float> bias;    // [out_features], or empty
  bool adds_input = false;
  std::vector<float> residual;  // [out_features, in_features]: its input's way to another size; empty: as it is
};

// Each empty when there is no such file.
struct SentenceFiles {
  boost::json::array modules;       // modules.json: what the text goes through, in order
  boost::json::object pooling;      // <its Pooling module's folder>/config.json
  boost::json::object transformer;  // sentence_bert_config.json: max_seq_length, ...
  boost::json::object tokenizer;    // tokenizer_config.json: model_max_length, where newer releases have it
  boost::json::object score;        // <its LogitScore module's folder>/config.json
  boost::json::object model;        // config_sentence_transformers.json: prompts, ...
  std::vector<DenseModule> dense;   // <their Dense modules' folders>, in order

  bool present() const { return !modules.empty(); }
};

// Errors: data_loss for files of another shape, or a module without its folder; unimplemented for pickles.
Result<SentenceFiles> read_sentence_files(const ModelDirectory& directory);

// The last part of a module's type: "Pooling" of "sentence_transformers.models.Pooling". Empty where it says none.
std::string_view module_kind(const boost::json::value& module);

}  // namespace quire::checkpoint
