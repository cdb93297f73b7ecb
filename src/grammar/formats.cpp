#include "grammar/formats.h"

#include <map>
#include <string>

namespace quire::grammar {

namespace {

using Patterns = std::map<std::string, std::string, std::less<>>;

Patterns make_patterns() {
  // Four digits from 1000; 29 February in leap years alone.
  const std::string date =
      "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|"
      "1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)";
  // No leap seconds: whether one was is not in the text.
  const std::string time = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
  const std::string days = "\\d{1,9}D";
  const std::string months = "\\d{1,9}M(?:" + days + ")?";
  const std::string seconds = "\\d{1,9}S";
  const std::string minutes = "\\d{1,9}M(?:" + seconds + ")?";
  const std::string clock = "T(?:" + seconds + "|" + minutes + "|\\d{1,9}H(?:" + minutes + ")?)";
  const std::string octet = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string hex = "[0-9a-fA-F]{1,4}";
  // No hyphen in the third and fourth place, which is for encoded names; no label of digits alone.
  const std::string label = "[a-z][a-z0-9]{0,20}(?:-[a-z0-9]{1,20})?";
  const std::string pchar = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  const std::string no_colon = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})";
  const std::string query = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
  const std::string uri = "[a-z][a-z0-9+.-]{0,15}:(?://" + label + "(?:\\." + label + "){0,4}(?::[1-9]\\d{0,3})?(?:/" +
                          pchar + "*)*|" + pchar + "+(?:/" + pchar + "*)*)" + query;
  const std::string pointer = "(?:/(?:[^/~]|~[01])*)*";
  const std::string email =
      "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,30})?@" + label + "(?:\\." + label + "){0,2}\\.[a-z]{2,12}";
  const std::string variable = "[A-Za-z0-9_]{1,30}(?:\\.[A-Za-z0-9_]{1,30})?(?::[1-9]\\d{0,3}|\\*)?";
  Patterns patterns;
  patterns["email"] = email;
  patterns["idn-email"] = email;
  patterns["date"] = date;
  patterns["time"] = time;
  patterns["date-time"] = date + "T" + time;
  patterns["duration"] =
      "P(?:\\d{1,9}W|" + clock + "|(?:" + days + "|" + months + "|\\d{1,9}Y(?:" + months + ")?)(?:" + clock + ")?)";
  patterns["ipv4"] = octet + "(?:\\." + octet + "){3}";
  patterns["ipv6"] = "(?:" + hex + ":){7}" + hex + "|(?:" + hex + ":){1,7}:|(?:" + hex + ":){1,6}:" + hex +
                     "|(?:" + hex + ":){1,5}(?::" + hex + "){1,2}|(?:" + hex + ":){1,4}(?::" + hex +
                     "){1,3}|(?:" + hex + ":){1,3}(?::" + hex + "){1,4}|(?:" + hex + ":){1,2}(?::" + hex + "){1,5}|" +
                     hex + ":(?::" + hex + "){1,6}|:(?:(?::" + hex + "){1,7}|:)";
  patterns["hostname"] = label + "(?:\\." + label + "){0,4}";
  patterns["uuid"] = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  patterns["uri"] = uri;
  patterns["uri-reference"] =
      uri + "|(?:/(?:" + pchar + "+(?:/" + pchar + "*)*)?|" + no_colon + "+(?:/" + pchar + "*)*)" + query;
  patterns["uri-template"] =
      "(?:[A-Za-z0-9._~:/?#@!$&()*+,;=-]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" + variable + "(?:," + variable + "){0,8}\\})*";
  patterns["json-pointer"] = pointer;
  patterns["relative-json-pointer"] = "(?:0|[1-9]\\d{0,8})(?:#|" + pointer + ")";
  return patterns;
}

}  // namespace

std::string_view format_pattern(std::string_view format) {
  static const Patterns patterns = make_patterns();
  const auto found = patterns.find(format);
  return found == patterns.end() ? std::string_view() : found->second;
}

}  // namespace quire::grammar
