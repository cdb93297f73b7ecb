#include "server/pooling_schema.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "server/json_fields.h"
#include "server/refused_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr const char* kInputShape =
    "input must be a string, a list of strings, a list of token ids, or a list of such lists";

bool is_native(const json::value& v) {
  return v.is_null() || (v.is_string() && v.get_string() == "native");
}
bool is_float32(const json::value& v) {
  return v.is_null() || (v.is_string() && v.get_string() == "float32");
}

constexpr RefusedField kRefusedInPooling[] = {
    {"messages", is_falsy, "conversations are not embedded; give their text as input"},
    {"mm_processor_kwargs", is_falsy, "the model takes text alone"},
    {"embed_dtype", is_float32, "vectors are float32"},
    {"endianness", is_native, "base64 holds little-endian floats"},
    {"softmax", is_null, "it is use_activation now"},
    {"instruction", is_falsy, "the model's own instruction is used"},
};

void read_fields(JsonFields& fields, PoolingFields& out) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  out.model = fields.string("model").value_or("");
  out.request_id = fields.string("request_id").value_or("");
  out.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens", -1, kMost);
  if (out.truncate_prompt_tokens == 0) {
    fields.fail("truncate_prompt_tokens", "truncate_prompt_tokens is 0, expected -1 (the context) or at least 1.");
  }
  out.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  out.priority = static_cast<int32_t>(fields.integer("priority", -kMost, kMost).value_or(0));
  out.cache_salt = fields.string("cache_salt").value_or("");
  fields.string("user");
}

std::optional<bool> read_activation(JsonFields& fields) {
  std::optional<bool> found;
  for (const char* name : {"activation", "use_activation"}) {  // the older name first
    if (const std::optional<bool> value = fields.boolean(name)) found = value;
  }
  return found;
}

std::vector<TokenId> read_ids(JsonFields& fields, const json::array& list) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const json::value& item : list) {
    const std::optional<int64_t> id = as_integer(item);
    if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
      fields.fail("input", fmt::format("input: a token id is {}, expected an integer of at least 0.", describe(item)));
      return {};
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

void read_inputs(JsonFields& fields, std::vector<PoolingInput>& inputs) {
  const json::value* value = fields.any("input");
  if (value == nullptr || value->is_null()) return fields.fail("input", "input is required: what is to be embedded.");
  if (value->is_string()) {
    inputs.emplace_back(std::string(std::string_view(value->get_string())));
    return;
  }
  const json::array* list = value->if_array();
  if (list == nullptr) return fields.fail("input", fmt::format("{}, found {}.", kInputShape, describe(*value)));
  if (list->empty()) return fields.fail("input", "input is an empty list; give at least one text.");
  const bool is_text = list->front().is_string();
  if (!is_text && !list->front().is_array()) {
    inputs.emplace_back(read_ids(fields, *list));
    return;
  }
  inputs.reserve(list->size());
  for (const json::value& item : *list) {
    if (item.kind() != list->front().kind()) {
      return fields.fail("input", fmt::format("{}; its items are of different kinds.", kInputShape));
    }
    if (is_text) {
      inputs.emplace_back(std::string(std::string_view(item.get_string())));
    } else {
      inputs.emplace_back(read_ids(fields, item.get_array()));
    }
    if (!fields.status().ok()) return;
  }
}

// A text, or an object {"text": ...} as Jina's and Cohere's clients may send a document.
std::optional<std::string> document_text(const json::value& value) {
  const json::value* text = &value;
  if (const json::object* object = value.if_object()) text = object->if_contains("text");
  if (text == nullptr || !text->is_string()) return std::nullopt;
  return std::string(std::string_view(text->get_string()));
}

// A text or a list of them, by any of these names; not empty.
std::vector<std::string> read_texts(JsonFields& fields, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const json::value* value = fields.any(name);
    if (value == nullptr || value->is_null()) continue;
    std::vector<std::string> texts;
    if (auto text = document_text(*value)) return {std::move(*text)};
    const json::array* list = value->if_array();
    if (list == nullptr || list->empty()) {
      fields.fail(name, fmt::format("{} must be a text or a list of texts that is not empty, found {}.", name,
                                    list != nullptr ? "an empty list" : describe(*value)));
      return {};
    }
    for (const json::value& item : *list) {
      auto text = document_text(item);
      if (!text) {
        fields.fail(name, fmt::format("{} holds {}, expected texts.", name, describe(item)));
        return {};
      }
      texts.push_back(std::move(*text));
    }
    return texts;
  }
  fields.fail(*names.begin(), fmt::format("{} is required.", *names.begin()));
  return {};
}

}  // namespace

Result<EmbeddingsRequest> parse_embeddings_request(const json::object& body) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedInPooling));
  EmbeddingsRequest request;
  JsonFields fields(body);
  read_fields(fields, request.fields);
  const std::string format = fields.string("encoding_format").value_or("float");
  request.base64 = format == "base64";
  if (!request.base64 && format != "float") {
    fields.fail("encoding_format", "encoding_format must be \"float\" or \"base64\".");
  }
  request.dimensions = fields.integer("dimensions", 1, std::numeric_limits<int32_t>::max());
  request.normalize = fields.boolean("normalize");
  request.prompt_name = fields.string("prompt_name").value_or("");
  request.use_activation = read_activation(fields);
  request.task = fields.string("task").value_or("");
  read_inputs(fields, request.inputs);
  QUIRE_RETURN_IF_ERROR(fields.status());
  return request;
}

std::string_view name_of(CohereEmbedRequest::Form form) {
  constexpr std::string_view kNames[] = {"float", "base64", "binary", "ubinary"};
  return kNames[static_cast<size_t>(form)];
}

namespace {

// {"content": [{"type": "text", "text": ...}, ...]}: its texts, one behind the other.
std::optional<std::string> cohere_input(const json::value& value) {
  const json::object* object = value.if_object();
  const json::value* content = object == nullptr ? nullptr : object->if_contains("content");
  if (content == nullptr || !content->is_array()) return std::nullopt;
  std::string text;
  for (const json::value& part : content->get_array()) {
    auto piece = part.is_object() ? document_text(part) : std::nullopt;
    if (!piece) return std::nullopt;
    text += *piece;
  }
  return text;
}

void read_cohere_texts(JsonFields& fields, std::vector<PoolingInput>& inputs) {
  const json::value* texts = fields.any("texts");
  const bool has_texts = texts != nullptr && !texts->is_null();
  const char* name = has_texts ? "texts" : "inputs";
  const json::value* given = has_texts ? texts : fields.any(name);
  const json::array* list = given == nullptr ? nullptr : given->if_array();
  if (list == nullptr || list->empty()) {
    return fields.fail(has_texts ? "texts" : "inputs", "texts must be a list of texts that is not empty.");
  }
  for (const json::value& item : *list) {
    std::optional<std::string> text;
    if (!has_texts) {
      text = cohere_input(item);
    } else if (item.is_string()) {
      text = std::string(std::string_view(item.get_string()));
    }
    if (!text) return fields.fail(name, fmt::format("{} holds {}, expected texts.", name, describe(item)));
    inputs.emplace_back(std::move(*text));
  }
}

void read_cohere_forms(JsonFields& fields, bool second_version, std::vector<CohereEmbedRequest::Form>& forms) {
  using Form = CohereEmbedRequest::Form;
  const json::value* types = fields.any("embedding_types");
  if (types == nullptr || types->is_null()) {
    if (second_version) forms.push_back(Form::kFloat);
    return;
  }
  const json::array* list = types->if_array();
  if (list == nullptr || list->empty()) {
    return fields.fail("embedding_types", "embedding_types must be a list that is not empty.");
  }
  for (const json::value& type : *list) {
    bool known = false;
    for (const Form form : {Form::kFloat, Form::kBase64, Form::kBinary, Form::kUnsignedBinary}) {
      if (!type.is_string() || std::string_view(type.get_string()) != name_of(form)) continue;
      known = true;
      if (std::ranges::count(forms, form) == 0) forms.push_back(form);
    }
    if (!known) {
      return fields.fail("embedding_types", fmt::format("embedding_types holds {}; there are float, base64, binary and "
                                                        "ubinary (bytes of 8 bits take a model made for them).",
                                                        describe(type)));
    }
  }
}

}  // namespace

Result<CohereEmbedRequest> parse_cohere_embed_request(const json::object& body, bool second_version) {
  constexpr RefusedField kRefused[] = {{"images", is_falsy, "the model takes text alone"}};
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefused));
  CohereEmbedRequest out;
  EmbeddingsRequest& request = out.request;
  JsonFields fields(body);
  request.fields.model = fields.string("model").value_or("");
  request.fields.priority = static_cast<int32_t>(fields.integer("priority", 0, 999).value_or(0));
  out.input_type = fields.string("input_type").value_or("");
  if (out.input_type == "image") fields.fail("input_type", "input_type is image; the model takes text alone.");
  request.dimensions = fields.integer("output_dimension", 1, std::numeric_limits<int32_t>::max());
  const std::string truncate = fields.string("truncate").value_or("END");
  if (truncate == "START") {
    fields.fail("truncate", "truncate START is not built; END cuts the end off, NONE refuses longer texts.");
  } else if (truncate != "END" && truncate != "NONE") {
    fields.fail("truncate", fmt::format("truncate is \"{}\", expected NONE or END.", truncate.substr(0, 100)));
  }
  const std::optional<int64_t> most = fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  if (truncate == "END") request.fields.truncate_prompt_tokens = most.value_or(-1);
  read_cohere_forms(fields, second_version, out.forms);
  read_cohere_texts(fields, request.inputs);
  QUIRE_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<ScoreRequest> parse_score_request(const json::object& body) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedInPooling));
  ScoreRequest request;
  JsonFields fields(body);
  read_fields(fields, request.fields);
  request.use_activation = read_activation(fields);
  request.first = read_texts(fields, {"text_1", "queries", "data_1"});
  request.second = read_texts(fields, {"text_2", "documents", "items", "data_2"});
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (request.first.size() != 1 && request.first.size() != request.second.size()) {
    return invalid_argument(
               "text_1 has {} texts and text_2 {}; they are paired one by one, or a single text_1 with all of text_2.",
               request.first.size(), request.second.size())
        .with_param("text_1");
  }
  return request;
}

Result<RerankRequest> parse_rerank_request(const json::object& body) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedInPooling));
  RerankRequest request;
  JsonFields fields(body);
  read_fields(fields, request.fields);
  request.use_activation = read_activation(fields);
  request.return_documents = fields.boolean("return_documents");
  std::vector<std::string> queries = read_texts(fields, {"query"});
  if (queries.size() > 1) fields.fail("query", "query is a list; one query is ranked by.");
  request.documents = read_texts(fields, {"documents"});
  const int64_t most = std::numeric_limits<int32_t>::max();
  const auto top_n = static_cast<size_t>(fields.integer("top_n", 0, most).value_or(0));  // 0: all, as vLLM has it
  QUIRE_RETURN_IF_ERROR(fields.status());
  request.max_tokens_per_doc = fields.integer("max_tokens_per_doc", 1, most);
  QUIRE_RETURN_IF_ERROR(fields.status());
  request.query = std::move(queries.front());
  request.top_n = top_n == 0 ? request.documents.size() : std::min(top_n, request.documents.size());
  return request;
}

}  // namespace quire::server
