// DFlash (Chen, Liang, Liu, "DFlash: block diffusion for flash speculative decoding", 2026): a few layers of Qwen3's
// shape that guess all tokens of a block in one pass. What is known of the text are a larger model's states, joined by
// "fc" and "hidden_norm" to one row a position: each layer's keys and values are made of those rows as they are, once.
// Behind them stands the block, the text's last token and mask tokens in the place of those that are guessed, whose
// rows go through the layers and see all of the text and of the block. Embeddings and the head over the vocabulary are
// the larger model's. Tensors are named as in published heads ("fc", "hidden_norm", "layers.<i>", "norm").
#pragma once

#include "models/draft_head.h"

namespace quire::models {

// Errors: those of a decoder's configuration; invalid_argument or unimplemented naming the member of config.json.
Result<ModelConfig> read_dflash_config(const boost::json::object& config, const boost::json::object& generation);
// A model that is a DraftHead. The first HeadRows::num_given rows of a step are of the text, those behind them are the
// block; a step has one sequence.
Result<std::unique_ptr<Model>> build_dflash(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

// Of a head of DFlash.
const DflashConfig& dflash_config(const ModelConfig& head);

inline constexpr Family kDflashFamily = {read_dflash_config, build_dflash};

}  // namespace quire::models
