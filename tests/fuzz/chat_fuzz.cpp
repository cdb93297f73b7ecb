// From a conversation to prompt tokens: engine::render_chat() with the model's template or the request's, left open for
// the model to go on with or not. Before a NUL: three bytes (how it is rendered, what of the JSON is grown how far),
// then the request's template, empty for the model's. Behind it {"messages", "variables"} as JSON.
#include <boost/json.hpp>
#include <fstream>

#include "engine/chat.h"
#include "runner/executor.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace json = boost::json;
using namespace quire;

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TextSource text_of_model() {
  TextSource text;
  text.tokenizer_json = read_file("tokenizers/small_bpe.json");
  text.chat_template =
      "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
  return text;
}

// Is never run: only the model's text is asked for.
class TextAlone final : public runner::Executor {
 public:
  TextAlone() {
    model_.vocab_size = 601;
    model_.max_position = 4096;
    memory_.block_size = 16;
    memory_.num_blocks = 512;
    memory_.max_model_len = 4096;
    memory_.max_num_batched_tokens = 2048;
  }
  const ModelConfig& model() const override { return model_; }
  const MemoryPlan& memory() const override { return memory_; }
  const std::string& description() const override { return description_; }
  void submit(StepPlan) override { QUIRE_CHECK_MSG(false, "nothing is to be computed"); }
  Result<runner::ExecutedStep> collect() override { return internal_error("nothing is to be computed"); }

 private:
  ModelConfig model_;
  MemoryPlan memory_;
  std::string description_ = "text alone";
};

const engine::Engine& text_engine() {
  static const auto made =
      engine::Engine::create({}, text_of_model(), std::make_unique<TextAlone>(), nullptr, Drive::kCaller).value();
  return *made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const engine::Engine& engine = text_engine();
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  const uint8_t where = input.byte();
  const uint8_t grow = input.byte();
  engine::ChatOptions options{.add_generation_prompt = (how & 1) != 0, .continue_final_message = (how & 2) != 0};
  options.chat_template = input.until(std::string_view("\0", 1));
  const std::string text = fuzz::grown(input.rest(), where, grow);
  json::parse_options deep;
  deep.max_depth = 64;
  boost::system::error_code error;
  json::value parsed = json::parse(text, error, {}, deep);
  if (error || !parsed.is_object()) return 0;
  json::object& fields = parsed.get_object();
  if (json::value* variables = fields.if_contains("variables"); variables != nullptr && variables->is_object())
    options.variables = std::move(variables->get_object());
  json::value* messages = fields.if_contains("messages");
  if (messages == nullptr || !messages->is_array()) return 0;

  // A template may take what its limits allow; the model's own is in proportion to what it is given.
  const fuzz::TimePerByte limit(options.chat_template.empty() ? text.size() : text.size() + (4 << 20));
  const auto prompt = engine::render_chat(engine, messages->get_array(), options);
  if (!prompt.ok()) {
    fuzz::check_error(prompt.status());
    return 0;
  }
  for (const TokenId id : prompt->ids) QUIRE_CHECK(id >= 0 && id < engine.tokenizer()->vocab_size());
  if (!options.continue_final_message) return 0;
  // The model goes on right behind the last message's text; a template may keep the spaces at its end, or not.
  std::string_view last = messages->get_array().back().at("content").is_string()
                              ? std::string_view(messages->get_array().back().at("content").get_string())
                              : std::string_view();
  const auto without_spaces = [](std::string_view whole) {
    while (!whole.empty() && std::isspace(static_cast<unsigned char>(whole.back()))) whole.remove_suffix(1);
    return whole;
  };
  QUIRE_CHECK_MSG(without_spaces(prompt->text).ends_with(without_spaces(last)), prompt->text.substr(0, 1000));
  return 0;
}
