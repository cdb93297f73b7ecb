// Tools for models whose chat template knows nothing of them: told in words, in the form that most models have seen.
#pragma once

#include <boost/json.hpp>

namespace quire::engine {

// The conversation with the tools described in its system message, calls of earlier turns as
// <tool_call>{"name": ..., "arguments": {...}}</tool_call> and results as <tool_response>...</tool_response> of the
// user. messages: as render_chat() takes them; what is no such message stays as it is.
boost::json::array with_tools_in_words(const boost::json::array& messages, const boost::json::array& tools);

// Arguments of earlier calls as objects, as templates expect them, where they are JSON text.
void parse_call_arguments(boost::json::object& message);

}  // namespace quire::engine
