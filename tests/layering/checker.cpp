#include "tests/layering/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>

namespace quire::layering {
namespace {

namespace fs = std::filesystem;

bool is_identifier(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool grants(const Rules::Folders& folders, const std::string& folder) {
  return folders.contains("*") || folders.contains(folder);
}

std::string list(const Rules::Folders& folders) {
  if (folders.empty()) return "no folder";
  std::string out;
  for (const std::string& folder : folders) out += (out.empty() ? "" : ", ") + folder;
  return out;
}

// The declared folder that a path relative to src/ lies in: the longest that is a prefix of it ("ops/cpu" before
// "ops").
std::optional<std::string> folder_of(const Rules& rules, const std::string& path) {
  for (fs::path folder = fs::path(path).parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (rules.folders.contains(folder.generic_string())) return folder.generic_string();
  }
  return std::nullopt;
}

bool folder_may_include(const Rules& rules, const std::string& from, const std::string& to) {
  if (from == to) return true;
  if (from != "base" && from != "types" && (to == "base" || to == "types")) return true;
  return grants(rules.folders.at(from), to);
}

// The operand of `#include "x"` or `#include <x>` with its opening quote in front; empty: the line is no include.
std::string include_operand(const std::string& line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return "";
  at = line.find_first_of("\"<", at + 7);
  if (at == std::string::npos) return "";
  const size_t end = line.find(line[at] == '<' ? '>' : '"', at + 1);
  return end == std::string::npos ? "" : line.substr(at, end - at);
}

bool is_condition(const std::string& line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return false;
  at = line.find_first_not_of(" \t", at + 1);
  return at != std::string::npos && (line.compare(at, 2, "if") == 0 || line.compare(at, 4, "elif") == 0);
}

// The identifiers of a line; those behind std:: also with it.
std::vector<std::string> identifiers(const std::string& line) {
  std::vector<std::string> found;
  for (size_t at = 0; at < line.size();) {
    size_t end = at;
    while (end < line.size() && is_identifier(line[end])) ++end;
    if (end > at) {
      found.push_back(line.substr(at, end - at));
      if (at >= 5 && line.compare(at - 5, 5, "std::") == 0) found.push_back("std::" + found.back());
    }
    at = end + 1;
  }
  return found;
}

// The rule for an identifier: the whole word, or the longest "beginning*" of it.
const std::pair<const std::string, Rules::Folders>* find_word(const std::map<std::string, Rules::Folders>& words,
                                                              const std::string& identifier) {
  if (auto found = words.find(identifier); found != words.end()) return &*found;
  for (size_t length = identifier.size(); length > 0; --length) {
    if (auto found = words.find(identifier.substr(0, length) + "*"); found != words.end()) return &*found;
  }
  return nullptr;
}

// A cycle in `edges`, as its nodes from the first back to the first; empty if there is none.
std::vector<std::string> find_cycle(const std::map<std::string, std::set<std::string>>& edges) {
  std::set<std::string> finished;
  std::vector<std::string> path;
  std::vector<std::string> cycle;
  const std::function<bool(const std::string&)> visit = [&](const std::string& node) {
    if (finished.contains(node)) return false;
    if (auto begin = std::find(path.begin(), path.end(), node); begin != path.end()) {
      cycle.assign(begin, path.end());
      cycle.push_back(node);
      return true;
    }
    path.push_back(node);
    if (auto next = edges.find(node); next != edges.end()) {
      for (const std::string& target : next->second) {
        if (visit(target)) return true;
      }
    }
    path.pop_back();
    finished.insert(node);
    return false;
  };
  for (const auto& [node, targets] : edges) {
    if (visit(node)) break;
  }
  return cycle;
}

class TreeCheck {
 public:
  TreeCheck(const fs::path& root, const Rules& rules, const std::vector<fs::path>& files) : root_(root), rules_(rules) {
    collect("src", files);
    collect("include", files);
  }

  std::vector<std::string> run() {
    for (const auto& [name, path] : files_) check_file(name, path);
    if (const auto cycle = find_cycle(includes_); !cycle.empty()) {
      std::string chain;
      for (const std::string& name : cycle) chain += (chain.empty() ? "" : " -> ") + name;
      problems_.push_back(fmt::format("files include each other in a circle: {}", chain));
    }
    return problems_;
  }

 private:
  void collect(const char* top, const std::vector<fs::path>& files) {
    static const std::set<std::string> kinds = {".h", ".hpp", ".inc", ".cpp", ".cu", ".cuh"};
    for (const fs::path& path : files) {
      const std::string name = path.lexically_relative(root_ / top).generic_string();
      if (!name.starts_with("..") && kinds.contains(path.extension().string())) files_[name] = path;
    }
  }

  void check_file(const std::string& name, const fs::path& path) {
    shown_ = fs::relative(path, root_).generic_string();
    line_ = 0;
    const auto folder = folder_of(rules_, name);
    if (!folder) {
      problem("lies in a folder that no line of allowed.txt declares");
      return;
    }
    std::istringstream lines(strip(read(path)));
    for (std::string line; std::getline(lines, line);) {
      ++line_;
      if (const std::string operand = include_operand(line); operand.starts_with('"')) {
        check_own_include(name, *folder, operand.substr(1));
      } else if (!operand.empty()) {
        check_library_include(*folder, operand.substr(1));
      } else {
        check_words(*folder, line);
      }
    }
  }

  void check_own_include(const std::string& name, const std::string& folder, const std::string& included) {
    if (!files_.contains(included)) {
      problem(fmt::format("includes \"{}\", which is no file under src/ or include/ (that git tracks)", included));
      return;
    }
    includes_[name].insert(included);
    const auto target = folder_of(rules_, included);
    if (target && !folder_may_include(rules_, folder, *target)) {
      problem(fmt::format("{} may not include {} (\"{}\")", folder, *target, included));
    }
  }

  void check_library_include(const std::string& folder, const std::string& header) {
    if (header == "regex") {
      problem("<regex> is not used here: it recurses once a character (use PCRE2 with limits)");
      return;
    }
    if (header.find_first_of("./") == std::string::npos) return;  // the C++ standard library
    const std::pair<const std::string, Rules::Folders>* best = nullptr;
    for (const auto& rule : rules_.libraries) {
      if (header.starts_with(rule.first) && (!best || rule.first.size() > best->first.size())) best = &rule;
    }
    if (!best) {
      problem(fmt::format("<{}> belongs to no library of allowed.txt", header));
    } else if (!grants(best->second, folder)) {
      problem(fmt::format("<{}> in {}: only in {}", header, folder, list(best->second)));
    }
  }

  void check_words(const std::string& folder, const std::string& line) {
    const bool condition = is_condition(line);
    for (const std::string& identifier : identifiers(line)) {
      for (const auto* rules : {&rules_.words, &rules_.conditions}) {
        if (rules == &rules_.conditions && !condition) continue;
        const auto* rule = find_word(*rules, identifier);
        if (rule && !grants(rule->second, folder)) {
          problem(fmt::format("`{}` in {}: only in {}", identifier, folder, list(rule->second)));
        }
      }
    }
  }

  void problem(const std::string& text) {
    problems_.push_back(line_ == 0 ? fmt::format("{}: {}", shown_, text)
                                   : fmt::format("{}:{}: {}", shown_, line_, text));
  }

  const fs::path& root_;
  const Rules& rules_;
  std::map<std::string, fs::path> files_;  // by the name an include gives them
  std::map<std::string, std::set<std::string>> includes_;
  std::vector<std::string> problems_;
  std::string shown_;
  int line_ = 0;
};

// Copies a comment or a literal that begins at `at` into `out` as strip() promises; returns where it ends, or `at` if
// none begins there.
size_t strip_one(std::string_view source, size_t at, std::string& out) {
  const auto keep_breaks = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (source[i] == '\n') out += '\n';
    }
  };
  const auto bounded = [&](size_t end) { return std::min(end, source.size()); };
  if (source.substr(at, 2) == "//") return bounded(source.find('\n', at));
  if (source.substr(at, 2) == "/*") {
    const size_t close = source.find("*/", at + 2);
    const size_t end = close == std::string_view::npos ? source.size() : close + 2;
    out += ' ';
    keep_breaks(at, end);
    return end;
  }
  const bool after_identifier = at > 0 && is_identifier(source[at - 1]);
  if (source.substr(at, 2) == "R\"" && !after_identifier) {
    const size_t open = source.find('(', at);
    if (open == std::string_view::npos) return source.size();
    const std::string closing = ")" + std::string(source.substr(at + 2, open - at - 2)) + "\"";
    const size_t close = source.find(closing, open);
    const size_t end = close == std::string_view::npos ? source.size() : close + closing.size();
    out += "\"\"";
    keep_breaks(at, end);
    return end;
  }
  const char quote = source[at];
  if (quote != '"' && (quote != '\'' || after_identifier)) return at;  // 1'000 is a number
  size_t end = at + 1;
  while (end < source.size() && source[end] != quote && source[end] != '\n') end += source[end] == '\\' ? 2 : 1;
  out += quote;
  out += quote;
  if (end < source.size() && source[end] == '\n') return end;  // unterminated: the compiler will say so
  return bounded(end + 1);
}

}  // namespace

std::string strip(std::string_view source) {
  std::string out;
  bool line_is_include = false;
  for (size_t at = 0; at < source.size();) {
    if (at == 0 || source[at - 1] == '\n') {
      const std::string line(source.substr(at, source.find('\n', at) - at));
      line_is_include = !include_operand(line).empty();
    }
    const bool in_operand = line_is_include && source[at] == '"';
    const size_t end = in_operand ? at : strip_one(source, at, out);
    if (end == at) {
      out += source[at++];
    } else {
      at = end;
    }
  }
  return out;
}

Rules parse_rules(std::string_view text) {
  Rules rules;
  const std::map<std::string, std::map<std::string, Rules::Folders>*> kinds = {{"folder", &rules.folders},
                                                                               {"library", &rules.libraries},
                                                                               {"word", &rules.words},
                                                                               {"condition", &rules.conditions}};
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    std::string kind;
    if (!(words >> kind) || kind.starts_with('#')) continue;
    std::string name;
    words >> name;
    if (!kinds.contains(kind) || name.size() < 2 || !name.ends_with(':')) {
      rules.problems.push_back(fmt::format("allowed.txt:{}: expected `KIND NAME: FOLDERS`, found `{}`", number, line));
      continue;
    }
    name.pop_back();
    const auto [entry, is_new] = kinds.at(kind)->try_emplace(name);
    if (!is_new) rules.problems.push_back(fmt::format("allowed.txt:{}: {} {} a second time", number, kind, name));
    for (std::string folder; words >> folder;) entry->second.insert(folder);
  }
  for (const auto& [kind, entries] : kinds) {
    for (const auto& [name, folders] : *entries) {
      for (const std::string& folder : folders) {
        if (folder == "*" || rules.folders.contains(folder)) continue;
        rules.problems.push_back(
            fmt::format("allowed.txt: {} {} names the folder {}, which no line declares", kind, name, folder));
      }
    }
  }
  if (const auto cycle = find_cycle(rules.folders); !cycle.empty()) {
    rules.problems.push_back(
        fmt::format("allowed.txt: folders may include each other in a circle, by way of {}", cycle.front()));
  }
  return rules;
}

std::vector<std::string> check_tree(const fs::path& root, const Rules& rules, const std::vector<fs::path>& files) {
  return TreeCheck(root, rules, files).run();
}

namespace {

// Paths under the root; nothing where there is no git, or no checkout.
std::vector<std::string> tracked_names(const fs::path& root) {
  const std::string command = "git -C '" + root.string() + "' ls-files -z 2>/dev/null";
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[4096];
    while (const size_t count = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, count);
    if (pclose(pipe) != 0) text.clear();
  }
  std::vector<std::string> names;
  for (size_t begin = 0; begin < text.size(); begin += names.back().size() + 1) names.emplace_back(&text[begin]);
  return names;
}

}  // namespace

std::vector<fs::path> repository_files(const fs::path& root) {
  std::vector<fs::path> files;
  for (const std::string& name : tracked_names(root)) {
    if (fs::is_regular_file(root / name)) files.push_back(root / name);
  }
  if (files.empty()) {
    for (auto entry = fs::recursive_directory_iterator(root); entry != fs::recursive_directory_iterator(); ++entry) {
      const std::string name = entry->path().filename().string();
      const bool is_output = name.starts_with("build") && entry->path().parent_path() == root;
      if (entry->is_directory() && (is_output || name == "__pycache__" || (name[0] == '.' && name != ".ci"))) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace quire::layering
