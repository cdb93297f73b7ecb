// The entry "decoder" of a tokenizer.json.
#include <algorithm>

#include "text/tokenizer_json.h"

namespace quire::text {
namespace {

// The stages as they are read. A stage that joins all tokens is followed by stages that see one; those that cannot
// work on parts of it get a stage that gathers it first.
struct DecoderReader {
  DecoderChain chain;
  std::vector<std::string_view> types;
  bool joined = false;

  void add_for_tokens(DecoderStep step) {
    if (joined) chain.add(gather_decoder());
    chain.add(std::move(step));
  }
};

Result<int64_t> read_count(const JsonNode& node, std::string_view key) {
  if (node.find(key) == nullptr) return int64_t{0};
  QUIRE_ASSIGN_OR_RETURN(const int64_t count, node.integer(key));
  return std::min<int64_t>(count, 1 << 20);
}

Status add_metaspace(const JsonNode& node, DecoderReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(std::string replacement, read_character(node, "replacement"));
  QUIRE_ASSIGN_OR_RETURN(const std::string_view scheme, node.string_or("prepend_scheme", "always"));
  QUIRE_ASSIGN_OR_RETURN(const bool prefix_space, node.boolean("add_prefix_space", true));
  reader.add_for_tokens(metaspace_decoder(std::move(replacement), scheme == "never" || !prefix_space));
  return {};
}

Status add_strip(const JsonNode& node, DecoderReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(std::string content, read_character(node, "content"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t start, read_count(node, "start"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t stop, read_count(node, "stop"));
  // Behind another Strip of the whole text the parts are no longer what the file's stage would see.
  const bool streams = reader.joined && reader.types.back() == "Fuse";
  if (streams) {
    reader.chain.add(strip_decoder(std::move(content), start, stop, true));
  } else {
    reader.add_for_tokens(strip_decoder(std::move(content), start, stop, false));
  }
  return {};
}

Status add_ctc(const JsonNode& node, DecoderReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view pad, node.string_or("pad_token", "<pad>"));
  QUIRE_ASSIGN_OR_RETURN(const std::string_view delimiter, node.string_or("word_delimiter_token", "|"));
  QUIRE_ASSIGN_OR_RETURN(const bool cleanup, node.boolean("cleanup", true));
  reader.add_for_tokens(ctc_decoder(std::string(pad), std::string(delimiter), cleanup));
  return {};
}

Status add_decoder(const JsonNode& node, DecoderReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
  if (type == "Sequence") {
    QUIRE_ASSIGN_OR_RETURN(const boost::json::array* steps, node.array("decoders"));
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string path = fmt::format("{}[{}]", node.path_of("decoders"), i);
      QUIRE_RETURN_IF_ERROR(add_decoder(JsonNode((*steps)[i], path), reader));
    }
    return {};
  }
  if (type == "ByteLevel") {
    reader.add_for_tokens(byte_level_decoder());
    reader.joined = true;
  } else if (type == "Fuse") {
    reader.joined = true;
  } else if (type == "ByteFallback") {
    reader.add_for_tokens(byte_fallback_decoder());
  } else if (type == "Metaspace") {
    QUIRE_RETURN_IF_ERROR(add_metaspace(node, reader));
  } else if (type == "Strip") {
    QUIRE_RETURN_IF_ERROR(add_strip(node, reader));
  } else if (type == "Replace") {
    QUIRE_ASSIGN_OR_RETURN(auto pattern, read_pattern(node, "pattern"));
    QUIRE_ASSIGN_OR_RETURN(const std::string_view content, node.string("content"));
    reader.add_for_tokens(replace_decoder(std::move(pattern), std::string(content)));
  } else if (type == "WordPiece") {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string_or("prefix", "##"));
    QUIRE_ASSIGN_OR_RETURN(const bool cleanup, node.boolean("cleanup", true));
    reader.add_for_tokens(word_piece_decoder(std::string(prefix), cleanup));
  } else if (type == "BPEDecoder") {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view suffix, node.string_or("suffix", "</w>"));
    reader.add_for_tokens(bpe_decoder(std::string(suffix)));
  } else if (type == "CTC") {
    QUIRE_RETURN_IF_ERROR(add_ctc(node, reader));
  } else {
    return unimplemented("{}: the decoder {} is not supported", node.path(), type);
  }
  reader.types.push_back(type);
  return {};
}

}  // namespace

Status read_decoder(const JsonNode& root, TokenizerParts& parts) {
  const boost::json::value* value = root.find("decoder");
  parts.spelling = TokenSpelling::kChain;
  if (value == nullptr) {
    parts.decoder.add(join_decoder(" "));
    return {};
  }
  DecoderReader reader;
  QUIRE_RETURN_IF_ERROR(add_decoder(JsonNode(*value, "decoder"), reader));
  const auto is_fuse = [](std::string_view type) { return type == "Fuse"; };
  // What most files say has a table by id.
  if (std::all_of(reader.types.begin(), reader.types.end(), is_fuse)) {
    parts.spelling = TokenSpelling::kVerbatim;
  } else if (reader.types[0] == "ByteLevel" && std::all_of(reader.types.begin() + 1, reader.types.end(), is_fuse)) {
    parts.spelling = TokenSpelling::kByteAlphabet;
  } else {
    parts.decoder = std::move(reader.chain);
    parts.decodes_bytes = std::find(reader.types.begin(), reader.types.end(), "ByteFallback") != reader.types.end();
  }
  return {};
}

}  // namespace quire::text
