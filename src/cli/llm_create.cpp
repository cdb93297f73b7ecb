// The factory of the public API: the only part of it that knows a concrete backend.
#include "cli/backend.h"
#include "engine/engine.h"
#include "quire/llm.h"

namespace quire {

Result<std::unique_ptr<LLM>> LLM::create(EngineConfig config, Drive drive) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine, cli::make_engine(config, drive));
  return std::make_unique<LLM>(std::move(engine));
}

}  // namespace quire
