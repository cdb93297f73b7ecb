// The entry "normalizer" of a tokenizer.json.
#include "text/tokenizer_json.h"

namespace quire::text {
namespace {

Status add_normalizer(const JsonNode& node, Normalizer& normalizer);

Status add_sequence(const JsonNode& node, Normalizer& normalizer) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::array* steps, node.array("normalizers"));
  for (size_t i = 0; i < steps->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", node.path_of("normalizers"), i);
    QUIRE_RETURN_IF_ERROR(add_normalizer(JsonNode((*steps)[i], path), normalizer));
  }
  return {};
}

Status add_precompiled(const JsonNode& node, Normalizer& normalizer) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view encoded, node.string_or("precompiled_charsmap", ""));
  const std::string path = node.path_of("precompiled_charsmap") + ": ";
  auto bytes = decode_base64(encoded);
  if (!bytes.ok()) return bytes.status().with_prefix(path);
  auto map = PrecompiledCharsmap::parse(*bytes);
  if (!map.ok()) return map.status().with_prefix(path);
  normalizer.add(make_precompiled_step(std::move(map).value()));
  return {};
}

Status add_bert(const JsonNode& node, Normalizer& normalizer) {
  BertNormalizerOptions options;
  QUIRE_ASSIGN_OR_RETURN(options.clean_text, node.boolean("clean_text", true));
  QUIRE_ASSIGN_OR_RETURN(options.handle_chinese_chars, node.boolean("handle_chinese_chars", true));
  QUIRE_ASSIGN_OR_RETURN(options.lowercase, node.boolean("lowercase", true));
  // Not said: as lowercase.
  QUIRE_ASSIGN_OR_RETURN(options.strip_accents, node.boolean("strip_accents", options.lowercase));
  normalizer.add(make_bert_step(options));
  return {};
}

Status add_normalizer(const JsonNode& node, Normalizer& normalizer) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
  if (const auto form = normalization_form(type)) {
    normalizer.add(*form);
    return {};
  }
  if (type == "Sequence") return add_sequence(node, normalizer);
  if (type == "Precompiled") return add_precompiled(node, normalizer);
  if (type == "BertNormalizer") return add_bert(node, normalizer);
  if (type == "Replace") {
    QUIRE_ASSIGN_OR_RETURN(auto pattern, read_pattern(node, "pattern"));
    QUIRE_ASSIGN_OR_RETURN(const std::string_view content, node.string("content"));
    normalizer.add(make_replace_step(std::move(pattern), std::string(content)));
  } else if (type == "Strip") {
    QUIRE_ASSIGN_OR_RETURN(const bool left, node.boolean("strip_left", true));
    QUIRE_ASSIGN_OR_RETURN(const bool right, node.boolean("strip_right", true));
    normalizer.add(make_strip_step(left, right));
  } else if (type == "Prepend") {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string("prepend"));
    normalizer.add(make_prepend_step(std::string(prefix)));
  } else if (type == "Lowercase") {
    normalizer.add(make_lowercase_step());
  } else if (type == "StripAccents") {
    normalizer.add(make_strip_accents_step());
  } else if (type == "Nmt") {
    normalizer.add(make_nmt_step());
  } else if (type == "ByteLevel") {
    normalizer.add(make_byte_level_step());
  } else {
    return unimplemented("{}: the normalizer {} is not supported", node.path(), type);
  }
  return {};
}

}  // namespace

Status read_normalizer(const JsonNode& root, Normalizer& normalizer) {
  const boost::json::value* value = root.find("normalizer");
  if (value == nullptr) return {};
  return add_normalizer(JsonNode(*value, "normalizer"), normalizer);
}

}  // namespace quire::text
