# Run while building: cmake -DFILES="a;b" -DOUTPUT=web_files.cpp -P EmbedFiles.cmake. Writes the files' bytes, their content
# types and hashes as the C++ source that src/server/static_files.h declares.
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")

set(arrays "")
set(rows "")
set(number 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING "${extension}" 1 -1 extension)
  if(NOT DEFINED types_${extension})
    message(FATAL_ERROR "${file}: no content type is known for it (cmake/EmbedFiles.cmake)")
  endif()
  file(READ ${file} bytes HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", \"${types_${extension}}\", \"\\\"${hash}\\\"\", text(kFile${number}, sizeof(kFile${number}) - 1)},\n")
  math(EXPR number "${number} + 1")
endforeach()

file(WRITE ${OUTPUT} "// Made by cmake/EmbedFiles.cmake.
#include \"server/static_files.h\"

namespace quire::server {
namespace {

${arrays}
std::string_view text(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::span<const StaticFile> static_files() {
  static const StaticFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace quire::server
")
