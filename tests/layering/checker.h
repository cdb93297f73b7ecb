// Checks a source tree against the layering of docs/architecture.md: who includes whom, which libraries and words are
// used where, and that no files include each other in a circle.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace quire::layering {

// The lines of allowed.txt (its head says what they mean).
struct Rules {
  using Folders = std::set<std::string>;  // "*" in it: every folder

  std::map<std::string, Folders> folders;
  std::map<std::string, Folders> libraries;
  std::map<std::string, Folders> words;
  std::map<std::string, Folders> conditions;

  // What is wrong with the rules themselves, one sentence each: lines that cannot be read, folders that no line
  // declares, folders that may include each other in a circle.
  std::vector<std::string> problems;
};

Rules parse_rules(std::string_view text);

// What is wrong with the tree, one sentence each ("file:line: ..."), in order of file and line. The tree has folders
// src/ and include/, either may be missing. Of `files`, paths under the root, those are read that lie there and end in
// .h .hpp .inc .cpp .cu .cuh.
std::vector<std::string> check_tree(const std::filesystem::path& root, const Rules& rules,
                                    const std::vector<std::filesystem::path>& files);

// The regular files of the tree that git tracks, sorted: what somebody left lying there is none of the repository's.
// Where there is no git, or the tree is no checkout, all of them but hidden folders and, at the top, build*.
std::vector<std::filesystem::path> repository_files(const std::filesystem::path& root);

// `source` with comments removed and the insides of string and character literals blanked, line breaks kept. The
// operand of #include is kept.
std::string strip(std::string_view source);

}  // namespace quire::layering
