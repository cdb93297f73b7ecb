// Files that are wrong in one way each, with the error that must name it. Ids F1 to F8 are the classes of published
// attacks on model readers: sizes that wrap (F1), dimension products that wrap (F2), ranges past the end (F3), hostile
// lengths, types, alignments and duplicates (F4), safetensors against its reference limits (F5), pickles (F7), hostile
// configuration and shard names (F8). "-": ordinary damage.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

namespace fs = std::filesystem;
using enum StatusCode;
using enum GgufValueType;

constexpr uint64_t kHuge = uint64_t{1} << 62;

struct Row {
  const char* id;
  const char* name;
  StatusCode code;
  std::string message;                               // a part of the error
  std::function<std::string(const fs::path&)> make;  // writes into the directory, returns what to open
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.id << " " << row.name;
}

// The small GGUF file after a change.
auto gguf(std::function<void(GgufWriter&)> change) {
  return [change](const fs::path& directory) {
    GgufWriter writer = small_gguf();
    change(writer);
    return write_file(directory / "model.gguf", writer.build());
  };
}
// The bytes of the small GGUF file after a change.
auto gguf_bytes(std::function<void(std::string&)> change) {
  return [change](const fs::path& directory) {
    std::string bytes = small_gguf().build();
    change(bytes);
    return write_file(directory / "model.gguf", bytes);
  };
}
auto file(const std::string& name, const std::string& bytes) {
  return [=](const fs::path& directory) { return write_file(directory / name, bytes); };
}
auto weights(const std::string& bytes) {
  return [=](const fs::path& directory) {
    write_small_directory(directory);
    write_file(directory / "model.safetensors", bytes);
    return directory.string();
  };
}
auto header(const std::string& text, size_t data_bytes = 8) {
  return weights(safetensors(text, std::string(data_bytes, '\0')));
}
// The small directory after a change.
auto directory(std::function<void(const fs::path&)> change) {
  return [change](const fs::path& path) {
    write_small_directory(path);
    change(path);
    return path.string();
  };
}
auto config(const std::string& text) {
  return directory([=](const fs::path& path) { write_file(path / "config.json", text); });
}
auto index(const std::string& text) {
  return [=](const fs::path& path) {
    write_sharded_directory(path);
    write_file(path / "model.safetensors.index.json", text);
    return path.string();
  };
}

const std::vector<Row>& gguf_container_rows() {
  static const std::vector<Row> rows = {
      {"-", "EmptyFile", kDataLoss, "the file is empty", file("model.gguf", "")},
      {"-", "ThreeBytes", kDataLoss, "the magic at byte 0 needs 4 bytes", file("model.gguf", "GGU")},
      {"-", "AnotherMagic", kDataLoss, "expected \"GGUF\"", gguf([](auto& w) { w.magic = "ABCD"; })},
      {"-", "BigEndianMagic", kUnimplemented, "big-endian", gguf([](auto& w) { w.magic = "FUGG"; })},
      {"-", "OlderGgml", kUnimplemented, "older than GGUF", gguf([](auto& w) { w.magic = "tjgg"; })},
      {"-", "BigEndianVersion", kUnimplemented, "big-endian", gguf([](auto& w) { w.version = 0x03000000; })},
      {"-", "VersionOne", kUnimplemented, "version 1", gguf([](auto& w) { w.version = 1; })},
      {"-", "VersionFour", kDataLoss, "version 4, expected 2 or 3", gguf([](auto& w) { w.version = 4; })},
      {"-", "HeaderOnly", kDataLoss, "the tensor count at byte 8", gguf_bytes([](auto& b) { b.resize(8); })},
      {"-", "CutInsideMetadata", kDataLoss, "the file has only", gguf_bytes([](auto& b) { b.resize(400); })},
      {"-", "CutInsideTensorData", kDataLoss, "reach past the end",
       gguf_bytes([](auto& b) { b.resize(b.size() - 1); })},
      {"F4", "TensorCountHuge", kDataLoss, "tensor count", gguf([](auto& w) { w.tensor_count = kHuge; })},
      {"F4", "TensorCountOneTooMany", kDataLoss, "tensor 3", gguf([](auto& w) { w.tensor_count = 4; })},
      {"F4", "MetadataCountHuge", kDataLoss, "metadata count", gguf([](auto& w) { w.pair_count = kHuge; })},
      {"F4", "MetadataCountOneTooMany", kDataLoss, "metadata", gguf([](auto& w) { w.pair_count = 20; })},
      {"F4", "KeyLengthHuge", kDataLoss, "metadata key 0", gguf_bytes([](auto& b) { b.replace(24, 8, 8, '\xff'); })},
      {"F4", "EmptyKey", kDataLoss, "expected 1 to 65535", gguf([](auto& w) { w.u32("", 1); })},
      {"F4", "StringLengthHuge", kDataLoss, "the string at byte",
       gguf([](auto& w) { w.pair("x", 8, bytes_of<uint64_t>({kHuge})); })},
      {"F4", "ValueTypeUnknown", kDataLoss, "expected a value type from 0 to 12",
       gguf([](auto& w) { w.pair("x", 13, "12345678"); })},
      {"F4", "ArrayLengthHuge", kDataLoss, "cannot fit", gguf([](auto& w) { w.array("x", kUint64, kHuge, ""); })},
      {"F4", "ArrayBytesWrap", kDataLoss, "cannot fit",
       gguf([](auto& w) { w.array("x", kUint64, (uint64_t{1} << 61) + 1, "12345678"); })},
      {"F4", "StringArrayLengthHuge", kDataLoss, "cannot fit", gguf([](auto& w) { w.array("x", kString, kHuge, ""); })},
      {"F4", "ArrayElementTypeUnknown", kDataLoss, "the array's element type is 77",
       gguf([](auto& w) { w.array("x", static_cast<GgufValueType>(77), 1, "1"); })},
      {"F4", "ArrayOfArrays", kUnimplemented, "arrays of arrays", gguf([](auto& w) { w.array("x", kArray, 1, ""); })},
      {"F4", "BoolIsTwo", kDataLoss, "a bool holds 2", gguf([](auto& w) { w.boolean("x", 2); })},
      {"F4", "BoolInArrayIs255", kDataLoss, "a bool holds 255", gguf([](auto& w) {
         w.template numbers<uint8_t>("x", kBool, {1, 255});
       })},
      {"F4", "DuplicateKey", kDataLoss, "duplicate metadata key \"llama.block_count\"",
       gguf([](auto& w) { w.u32("llama.block_count", 1); })},
      {"F4", "AlignmentZero", kDataLoss, "expected a power of two",
       gguf([](auto& w) { w.u32("general.alignment", 0); })},
      {"F4", "AlignmentNoPowerOfTwo", kDataLoss, "\"general.alignment\" is 48",
       gguf([](auto& w) { w.u32("general.alignment", 48); })},
      {"F4", "AlignmentHuge", kDataLoss, "expected a power of two",
       gguf([](auto& w) { w.u32("general.alignment", 0x80000000u); })},
      {"F4", "AlignmentNegative", kDataLoss, "\"general.alignment\" is -32",
       gguf([](auto& w) { w.template number<int32_t>("general.alignment", kInt32, -32); })},
      {"F4", "AlignmentIsAString", kDataLoss, "found string, expected an integer",
       gguf([](auto& w) { w.string("general.alignment", "32"); })},
      {"-", "AFirstPartNamedAsAWhole", kInvalidArgument, "must end with -00001-of-00003.gguf",
       gguf([](auto& w) { w.template number<uint16_t>("split.count", kUint16, 3); })},
      {"-", "APartThatIsNotTheFirst", kInvalidArgument, "part 2 of 3 of a model; give the first", gguf([](auto& w) {
         w.template number<uint16_t>("split.count", kUint16, 3).template number<uint16_t>("split.no", kUint16, 1);
       })},
      {"-", "TooManyParts", kDataLoss, "expected at most 9999", gguf([](auto& w) { w.u32("split.count", 70000); })},
  };
  return rows;
}

const std::vector<Row>& gguf_tensor_rows() {
  const std::string block(32, 'x');
  static const std::vector<Row> rows = {
      {"F1", "OffsetPlusSizeWraps", kDataLoss, "reach past the end",
       gguf([=](auto& w) { w.tensor("x", {32}, 0, block, ~uint64_t{31}); })},
      {"F1", "SizeWraps", kDataLoss, "overflows", gguf([=](auto& w) { w.tensor("x", {uint64_t{1} << 61}, 0, block); })},
      {"F1", "SumOfSizesWraps", kDataLoss, "reach past the end", gguf([=](auto& w) {
         w.tensor("x", {uint64_t{1} << 60}, 0, block).tensor("y", {uint64_t{1} << 60}, 0, block, 32);
       })},
      {"F2", "ProductOfDimensionsWraps", kDataLoss, "the product of the dimensions", gguf([=](auto& w) {
         w.tensor("x", {uint64_t{1} << 32, uint64_t{1} << 32, 32}, 0, block);
       })},
      {"F2", "ProductOfDimensionsWrapsToSmall", kDataLoss, "the product of the dimensions", gguf([=](auto& w) {
         w.tensor("x", {uint64_t{1} << 33, (uint64_t{1} << 31) + 1}, 0, block);
       })},
      {"F2", "DimensionAboveInt64", kDataLoss, "expected 1 to 2^63-1",
       gguf([=](auto& w) { w.tensor("x", {~uint64_t{0}}, 0, block); })},
      {"F3", "OffsetPastTheEnd", kDataLoss, "reach past the end",
       gguf([=](auto& w) { w.tensor("x", {8}, 0, block, 1 << 20); })},
      {"F3", "SizePastTheEnd", kDataLoss, "reach past the end",
       gguf([=](auto& w) { w.tensor("x", {1024}, 0, block); })},
      {"F3", "NoTensorData", kDataLoss, "the file ends before its tensor data",
       file("model.gguf",
            [] {
              GgufWriter writer;
              writer.tensor("x", {8}, 0, "");
              std::string bytes = writer.build();
              bytes.resize(24 + 8 + 1 + 4 + 8 + 4 + 8);  // the header and the directory alone
              return bytes;
            }())},
      {"F4", "TensorTypeUnknown", kDataLoss, "type id 99, which names no tensor type",
       gguf([=](auto& w) { w.tensor("x", {8}, 99, block); })},
      {"F4", "TensorTypeNotBuilt", kUnimplemented,
       "tensor \"x\" has type Q8_1, which is not supported yet; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
       "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, "
       "BF16, TQ1_0, TQ2_0, MXFP4, NVFP4",
       gguf([=](auto& w) { w.tensor("x", {32}, 9, block); })},
      {"F4", "TensorTypeThatNoPackageReads", kUnimplemented, "tensor \"x\" has type Q1_0, which is not supported yet",
       gguf([=](auto& w) { w.tensor("x", {128}, 41, block); })},
      {"F4", "TensorTypeWithdrawn", kUnimplemented, "has type Q4_0_4_4, which GGUF has withdrawn",
       gguf([=](auto& w) { w.tensor("x", {32}, 31, block); })},
      {"F4", "TensorTypeOfIntegers", kUnimplemented, "has type I32",
       gguf([=](auto& w) { w.tensor("x", {8}, 26, block); })},
      {"F4", "RowsNotWholeBlocks", kDataLoss, "rows of 33 values are not whole blocks of 32 (Q4_0)",
       gguf([=](auto& w) { w.tensor("x", {33}, 2, block); })},
      {"F4", "RowsNotWholeBlocksOfQ5", kDataLoss, "rows of 48 values are not whole blocks of 32 (Q5_1)",
       gguf([=](auto& w) { w.tensor("x", {48}, 7, block); })},
      {"F4", "RowsNotWholeBlocksOfK", kDataLoss, "rows of 576 values are not whole blocks of 256 (Q6_K)",
       gguf([=](auto& w) {
         w.tensor("x", {576, 256}, 14, block);
       })},
      {"F4", "RowsNotWholeBlocksOfIq4", kDataLoss, "rows of 32 values are not whole blocks of 256 (IQ4_XS)",
       gguf([=](auto& w) {
         w.tensor("x", {32, 8}, 23, block);
       })},
      {"F4", "RowsNotWholeBlocksOfIq2", kDataLoss, "rows of 128 values are not whole blocks of 256 (IQ2_XXS)",
       gguf([=](auto& w) {
         w.tensor("x", {128, 2}, 16, block);
       })},
      {"F4", "RowsNotWholeBlocksOfTq1", kDataLoss, "rows of 288 values are not whole blocks of 256 (TQ1_0)",
       gguf([=](auto& w) {
         w.tensor("x", {288, 8}, 34, block);
       })},
      {"F4", "RowsNotWholeBlocksOfNvfp4", kDataLoss, "rows of 96 values are not whole blocks of 64 (NVFP4)",
       gguf([=](auto& w) {
         w.tensor("x", {96, 2}, 40, block);
       })},
      {"F4", "ABlockOfIq1ThatIsCutShort", kDataLoss, "reach past the end",
       gguf([=](auto& w) { w.tensor("x", {256}, 19, block); })},
      {"F4", "DimensionZero", kDataLoss, "dimension 1 is 0", gguf([=](auto& w) {
         w.tensor("x", {8, 0}, 0, block);
       })},
      {"F4", "NoDimensions", kDataLoss, "has 0 dimensions", gguf([=](auto& w) { w.tensor("x", {}, 0, block); })},
      {"F4", "FiveDimensions", kDataLoss, "has 5 dimensions", gguf([=](auto& w) {
         w.tensor("x", {2, 1, 1, 1, 4}, 0, block);
       })},
      {"F4", "DimensionCountHuge", kDataLoss, "has 4294967295 dimensions",
       gguf([=](auto& w) { w.tensor("x", {8}, 0, block, {}, ~0u); })},
      {"F4", "OffsetNotAligned", kDataLoss, "is not a multiple of the alignment 32",
       gguf([=](auto& w) { w.tensor("x", {4}, 0, block, 8); })},
      {"F4", "DuplicateTensorName", kDataLoss, "duplicate tensor name \"output_norm.weight\"",
       gguf([=](auto& w) { w.tensor("output_norm.weight", {8}, 0, block); })},
      {"F4", "TwoStoredNamesOfOneParameter", kDataLoss, "are both \"model.norm.weight\"",
       gguf([=](auto& w) { w.tensor("model.norm.weight", {8}, 0, block); })},
      {"F4", "EmptyTensorName", kDataLoss, "expected 1 to 65535", gguf([=](auto& w) { w.tensor("", {8}, 0, block); })},
      {"F4", "SameRangeTwice", kDataLoss, "overlap at offset 0",
       gguf([=](auto& w) { w.tensor("x", {8}, 0, block, 0); })},
      {"F4", "RangesOverlapInPart", kDataLoss, "overlap at offset 32",
       gguf([=](auto& w) { w.tensor("x", {8}, 0, block, 32); })},
  };
  return rows;
}

const std::vector<Row>& gguf_meaning_rows() {
  static const std::vector<Row> rows = {
      {"-", "NoArchitecture", kDataLoss, "\"general.architecture\" is missing",
       gguf([](auto& w) { w.remove("general.architecture"); })},
      {"-", "ArchitectureIsANumber", kDataLoss, "metadata \"general.architecture\": found uint32, expected a string",
       gguf([](auto& w) { w.remove("general.architecture").u32("general.architecture", 1); })},
      {"-", "ExpertCountIsAFloat", kDataLoss, "\"llama.expert_count\": found float32, expected an integer",
       gguf([](auto& w) { w.f32("llama.expert_count", 4); })},
      {"-", "TokenizerWithoutTokens", kDataLoss, "\"tokenizer.ggml.tokens\" is missing",
       gguf([](auto& w) { w.remove("tokenizer.ggml.tokens"); })},
      {"-", "NoTokens", kDataLoss, "\"tokenizer.ggml.tokens\" is empty",
       gguf([](auto& w) { w.remove("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", {}); })},
      {"-", "TokensAreNumbers", kDataLoss, "expected an array of strings", gguf([](auto& w) {
         w.remove("tokenizer.ggml.tokens").template numbers<uint32_t>("tokenizer.ggml.tokens", kUint32, {1});
       })},
      {"-", "FewerTokenTypesThanTokens", kDataLoss, "has 1 entries, expected one for each of the 4 tokens",
       gguf([](auto& w) {
         w.remove("tokenizer.ggml.token_type");
         w.template numbers<int32_t>("tokenizer.ggml.token_type", kInt32, {1});
       })},
      {"-", "TokenTypeUnknown", kDataLoss, "\"tokenizer.ggml.token_type\"[3] is 7, expected 0 to 6", gguf([](auto& w) {
         w.remove("tokenizer.ggml.token_type");
         w.template numbers<int32_t>("tokenizer.ggml.token_type", kInt32, {1, 1, 1, 7});
       })},
      {"-", "MoreScoresThanTokens", kDataLoss, "\"tokenizer.ggml.scores\" has 5 entries", gguf([](auto& w) {
         w.template numbers<float>("tokenizer.ggml.scores", kFloat32, {0, 0, 0, 0, 0});
       })},
      {"-", "ScoreIsNotANumber", kDataLoss, "\"tokenizer.ggml.scores\"[1] is not a number", gguf([](auto& w) {
         w.template numbers<float>("tokenizer.ggml.scores", kFloat32, {0, NAN, 0, 0});
       })},
      {"-", "MergesAreNotStrings", kDataLoss, "\"tokenizer.ggml.merges\": found array of 1 uint32", gguf([](auto& w) {
         w.remove("tokenizer.ggml.merges").template numbers<uint32_t>("tokenizer.ggml.merges", kUint32, {1});
       })},
      {"-", "EndTokenIsAString", kDataLoss, "\"tokenizer.ggml.eos_token_id\": found string, expected an integer",
       gguf([](auto& w) { w.remove("tokenizer.ggml.eos_token_id").string("tokenizer.ggml.eos_token_id", "</s>"); })},
      {"-", "AddBosIsANumber", kDataLoss, "\"tokenizer.ggml.add_bos_token\": found uint32, expected a bool",
       gguf([](auto& w) { w.remove("tokenizer.ggml.add_bos_token").u32("tokenizer.ggml.add_bos_token", 1); })},
      {"-", "ChatTemplateIsANumber", kDataLoss, "\"tokenizer.chat_template\": found uint32, expected a string",
       gguf([](auto& w) { w.remove("tokenizer.chat_template").u32("tokenizer.chat_template", 1); })},
  };
  return rows;
}

const std::vector<Row>& safetensors_rows() {
  const std::string good = entry("a", "F32", "[2]", 0, 8);
  static const std::vector<Row> rows = {
      {"F5", "EmptyFile", kDataLoss, "the file is empty", weights("")},
      {"F5", "SevenBytes", kDataLoss, "the header's length at byte 0 needs 8 bytes", weights("1234567")},
      {"F5", "HeaderOver100Megabytes", kDataLoss, "expected at most 100000000",
       weights(bytes_of<uint64_t>({100'000'001}))},
      {"F5", "HeaderLengthHuge", kDataLoss, "expected at most 100000000", weights(bytes_of<uint64_t>({~uint64_t{0}}))},
      {"F5", "HeaderPastTheEnd", kDataLoss, "the header at byte 8 needs 1000 bytes",
       weights(bytes_of<uint64_t>({1000}) + "{}")},
      {"F5", "HeaderEmpty", kDataLoss, "does not begin with \"{\"", weights(safetensors("", ""))},
      {"F5", "HeaderIsAList", kDataLoss, "does not begin with \"{\"", header("[]")},
      {"F5", "HeaderIsCutJson", kDataLoss, "not valid JSON", header("{" + good)},
      {"F5", "HeaderIsNotUtf8", kDataLoss, "not valid JSON", header("{\"\xff\":1}")},
      {"F5", "TextBehindTheHeader", kDataLoss, "text after the end", header("{" + good + "} x")},
      {"F5", "HeaderDeep", kDataLoss, "not valid JSON", header("{\"a\":" + std::string(100'000, '[') + "}")},
      {"F5", "DuplicateTensor", kDataLoss, "the key \"a\" stands twice", header("{" + good + "," + good + "}")},
      {"F5", "DuplicateField", kDataLoss, "the key \"dtype\" stands twice",
       header(R"({"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})")},
      {"F5", "TensorIsANumber", kDataLoss, "tensor \"a\" is 1, expected an object", header(R"({"a":1})")},
      {"F5", "UnknownField", kDataLoss, "has the unknown field \"stride\"",
       header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":1}})")},
      {"F5", "NoDtype", kDataLoss, "dtype is missing", header(R"({"a":{"shape":[2],"data_offsets":[0,8]}})")},
      {"F5", "NoShape", kDataLoss, "shape is missing", header(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})")},
      {"F5", "NoOffsets", kDataLoss, "data_offsets is missing", header(R"({"a":{"dtype":"F32","shape":[2]}})")},
      {"F5", "DtypeUnknown", kDataLoss, "dtype \"F77\" names no type",
       header("{" + entry("a", "F77", "[2]", 0, 8) + "}")},
      {"F5", "DtypeNotBuilt", kUnimplemented, "tensor \"a\" has dtype F8_E8M0, which is not supported yet",
       header("{" + entry("a", "F8_E8M0", "[8]", 0, 8) + "}")},
      {"F5", "DimensionNegative", kDataLoss, "a dimension is -2", header("{" + entry("a", "F32", "[-2]", 0, 8) + "}")},
      {"F5", "DimensionIsAFraction", kDataLoss, "a dimension is", header("{" + entry("a", "F32", "[2.5]", 0, 8) + "}")},
      {"F5", "SixDimensions", kUnimplemented, "has 6 dimensions",
       header("{" + entry("a", "F32", "[2,1,1,1,1,1]", 0, 8) + "}")},
      {"F2", "ShapeProductWraps", kDataLoss, "overflows",
       header("{" + entry("a", "F32", "[4294967296,4294967296,2]", 0, 8) + "}")},
      {"F2", "ShapeProductWrapsBeforeAZero", kDataLoss, "overflows",
       header("{" + entry("a", "F32", "[4294967296,4294967296,0]", 0, 0) + "}", 0)},
      {"F5", "ShapeUnlikeTheRange", kDataLoss, "hold 8 bytes, but shape [3] as F32 has 12",
       header("{" + entry("a", "F32", "[3]", 0, 8) + "}")},
      {"F5", "OffsetsBackwards", kDataLoss, "run backwards", header("{" + entry("a", "F32", "[2]", 8, 0) + "}")},
      {"F5", "OneOffset", kDataLoss, "expected a list of two integers",
       header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})")},
      {"F3", "RangePastTheEnd", kDataLoss, "reach past the end of the 4 bytes", header("{" + good + "}", 4)},
      {"F5", "Overlap", kDataLoss, "overlaps the tensor before it",
       header("{" + good + "," + entry("b", "F32", "[1]", 4, 8) + "}")},
      {"F5", "Gap", kDataLoss, "a gap from 8 to 12",
       header("{" + good + "," + entry("b", "F32", "[1]", 12, 16) + "}", 16)},
      {"F5", "GapAtTheBeginning", kDataLoss, "a gap from 0 to 4", header("{" + entry("b", "F32", "[1]", 4, 8) + "}")},
      {"F5", "BytesBehindTheLastTensor", kDataLoss, "the tensors end at 8, but the file has 9",
       header("{" + good + "}", 9)},
      {"F5", "TooManyTensors", kDataLoss, "expected at most 100000",
       header(
           [] {
             std::string text = "{";
             for (int i = 0; i <= 100'000; ++i) {
               text += (i == 0 ? "" : ",") + entry(fmt::format("t{}", i), "F32", "[0]", 0, 0);
             }
             return text + "}";
           }(),
           0)},
      {"F5", "MetadataIsAString", kDataLoss, "__metadata__ is the string",
       header("{\"__metadata__\":\"x\"," + good + "}")},
      {"F5", "MetadataValueIsANumber", kDataLoss, "expected a string",
       header("{\"__metadata__\":{\"x\":1}," + good + "}")},
      {"F5", "EmptyTensorName", kDataLoss, "the empty string", header("{" + entry("", "F32", "[2]", 0, 8) + "}")},
  };
  return rows;
}

const std::vector<Row>& directory_rows() {
  static const std::vector<Row> rows = {
      {"-", "NoSuchPath", kNotFound, "no such file or directory",
       [](const fs::path& path) { return (path / "nothing").string(); }},
      {"-", "EmptyPath", kInvalidArgument, "path is empty", [](const fs::path&) { return std::string(); }},
      {"-", "EmptyDirectory", kNotFound, "there is neither model.safetensors nor",
       [](const fs::path& path) { return path.string(); }},
      {"-", "ADevice", kInvalidArgument, "not a regular file",
       [](const fs::path&) { return std::string("/dev/null"); }},
      {"-", "APipe", kInvalidArgument, "not a regular file",
       [](const fs::path& path) {
         EXPECT_EQ(::mkfifo((path / "model.gguf").c_str(), 0600), 0);
         return (path / "model.gguf").string();
       }},
      {"-", "ASafetensorsFileAlone", kInvalidArgument, "give the directory",
       [](const fs::path& path) {
         write_small_directory(path);
         return (path / "model.safetensors").string();
       }},
      {"-", "AGgufInADirectory", kInvalidArgument, "give the path of that file",
       [](const fs::path& path) {
         write_file(path / "model.gguf", "GGUF");
         return path.string();
       }},
      {"F7", "PickleFile", kUnimplemented, "pytorch_model.bin: a Python pickle", file("pytorch_model.bin", "x")},
      {"F7", "PickleDirectory", kUnimplemented, "convert the model to safetensors",
       [](const fs::path& path) {
         write_file(path / "config.json", kSmallConfig);
         write_file(path / "model.pth", "x");
         return path.string();
       }},
      {"F7", "PickleUnderAnotherName", kUnimplemented, "a Python pickle", file("model.gguf", "PK\x03\x04zip")},
      {"F8", "NoConfig", kNotFound, "there is no config.json",
       directory([](const fs::path& path) { fs::remove(path / "config.json"); })},
      {"F8", "ConfigIsEmpty", kDataLoss, "the file is empty", config("")},
      {"F8", "ConfigIsAList", kDataLoss, "not a JSON object, found a list", config("[]")},
      {"F8", "ConfigIsDeep", kDataLoss, "not valid JSON",
       config("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}")},
      {"F8", "ConfigHasNaN", kDataLoss, "not valid JSON at byte", config("{\"rope_theta\": NaN}")},
      {"-", "QuantisedWeights", kUnimplemented, "quant_method \"vptq\" is not supported yet",
       config(R"({"quantization_config": {"quant_method": "vptq"}})")},
      {"-", "QuantisedToFiveBits", kUnimplemented, "quantization_config.bits is 5; supported: 2, 3, 4, 8",
       config(R"({"quantization_config": {"quant_method": "gptq", "bits": 5, "group_size": 128}})")},
      {"-", "QuantisedWithoutAGroup", kDataLoss, "quantization_config.group_size is missing; expected -1",
       config(R"({"quantization_config": {"quant_method": "awq", "bits": 4}})")},
      {"-", "QuantisedForACard", kUnimplemented,
       "quantization_config.checkpoint_format is the string \"bitblas\"; supported",
       config(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
           "checkpoint_format": "bitblas"}})")},
      {"-", "SparseWeights", kUnimplemented,
       "quantization_config.sparsity_config.format is the string \"marlin-24\"; supported",
       config(R"({"quantization_config": {"quant_method": "compressed-tensors",
           "sparsity_config": {"format": "marlin-24"}}})")},
      {"-", "QuantisedToAnotherFormat", kUnimplemented, "format \"marlin-24\"; supported",
       config(R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24",
           "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}}}})")},
      {"-", "TargetsThatAreNoExpression", kInvalidArgument, "config_groups.a.targets: the expression",
       config(R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
           "config_groups": {"a": {"targets": ["re:("], "weights": {"num_bits": 8, "type": "int"}}}}})")},
      {"-", "GenerationConfigIsBroken", kDataLoss, "generation_config.json: not valid JSON",
       directory([](const fs::path& path) { write_file(path / "generation_config.json", "{"); })},
      {"-", "ChatTemplateIsANumber", kDataLoss, "chat_template is 1",
       directory([](const fs::path& path) { write_file(path / "tokenizer_config.json", R"({"chat_template": 1})"); })},
      {"F8", "IndexWithoutMap", kDataLoss, "weight_map is missing", index("{}")},
      {"F8", "IndexMapEmpty", kDataLoss, "weight_map is empty", index(R"({"weight_map":{}})")},
      {"F8", "IndexNamesANumber", kDataLoss, "weight_map[\"a\"] is 1", index(R"({"weight_map":{"a":1}})")},
      {"F8", "IndexRepeatsATensor", kDataLoss, "the key \"a\" stands twice",
       index(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})")},
      {"F8", "ShardMissing", kNotFound, "there is no \"three.safetensors\"",
       index(R"({"weight_map":{"a":"three.safetensors"}})")},
      {"F8", "ShardInTheParent", kDataLoss, "not a plain name", index(R"({"weight_map":{"a":"../one.safetensors"}})")},
      {"F8", "ShardAbsolute", kDataLoss, "not a plain name", index(R"({"weight_map":{"a":"/etc/x.safetensors"}})")},
      {"F8", "ShardWithANul", kDataLoss, "not a plain name",
       index("{\"weight_map\":{\"a\":\"one\\u0000.safetensors\"}}")},
      {"F8", "ShardOfAnotherKind", kDataLoss, "expected the name of a .safetensors file",
       index(R"({"weight_map":{"a":"pytorch_model.bin"}})")},
      {"F8", "ShardWithoutItsTensor", kDataLoss, "which does not hold it",
       index(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})")},
      {"F8", "ShardWithATensorTooMany", kDataLoss, "which weight_map does not place in it",
       index(R"({"weight_map":{"b":"two.safetensors","c":"one.safetensors"}})")},
      {"F8", "TotalSizeThatIsNoNumber", kDataLoss, "metadata.total_size is the string",
       index(R"({"metadata":{"total_size":"13"},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})")},
      {"F8", "SymlinkOutOfTheDirectory", kDataLoss, "a symbolic link that leaves the directory",
       [](const fs::path& path) {
         fs::create_directory(path / "model");
         write_small_directory(path / "model");
         fs::rename(path / "model" / "model.safetensors", path / "outside.safetensors");
         fs::create_symlink("../outside.safetensors", path / "model" / "model.safetensors");
         return (path / "model").string();
       }},
      {"F8", "SymlinkToItself", kNotFound, "leads nowhere", directory([](const fs::path& path) {
         fs::remove(path / "model.safetensors");
         fs::create_symlink("model.safetensors", path / "model.safetensors");
       })},
  };
  return rows;
}

class MalformedTest : public testing::TestWithParam<Row> {};

TEST_P(MalformedTest, IsRefusedWithItsReason) {
  const TemporaryDirectory directory;
  const std::string path = GetParam().make(directory.path());
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_FALSE(checkpoint.ok()) << "case " << GetParam().id << " was opened";
  EXPECT_EQ(checkpoint.status().code(), GetParam().code) << checkpoint.status().message();
  EXPECT_THAT(checkpoint.status().message(), testing::HasSubstr(GetParam().message));
}

std::string row_name(const testing::TestParamInfo<Row>& row) {
  return std::string(row.param.id == std::string("-") ? "" : std::string(row.param.id) + "_") + row.param.name;
}

INSTANTIATE_TEST_SUITE_P(GgufContainer, MalformedTest, testing::ValuesIn(gguf_container_rows()), row_name);
INSTANTIATE_TEST_SUITE_P(GgufTensors, MalformedTest, testing::ValuesIn(gguf_tensor_rows()), row_name);
INSTANTIATE_TEST_SUITE_P(GgufMeaning, MalformedTest, testing::ValuesIn(gguf_meaning_rows()), row_name);
INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedTest, testing::ValuesIn(safetensors_rows()), row_name);
INSTANTIATE_TEST_SUITE_P(Directory, MalformedTest, testing::ValuesIn(directory_rows()), row_name);

}  // namespace
}  // namespace quire::checkpoint
