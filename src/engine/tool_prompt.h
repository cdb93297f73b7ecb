// Tools for models whose chat template knows nothing of them: told in words, with calls in the form that is read.
#pragma once

#include <boost/json.hpp>

#include "grammar/answer_reading.h"

namespace quire::engine {

// Whether there are calls or results of tools in the conversation.
bool has_calls(const boost::json::array& messages);

// The conversation with the tools described in its system message, calls of earlier turns as
// the format writes them and results as <tool_response>...</tool_response> of the
// user. messages: as render_chat() takes them; what is no such message stays as it is. tools: none: what was called
// before alone is put into words.
boost::json::array with_tools_in_words(const boost::json::array& messages, const boost::json::array& tools,
                                       grammar::ToolFormat format);

// Arguments of earlier calls as objects, as templates expect them, where they are JSON text.
void parse_call_arguments(boost::json::object& message);

}  // namespace quire::engine
