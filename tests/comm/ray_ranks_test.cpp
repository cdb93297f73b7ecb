#include "comm/ray_ranks.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/ray_nodes.h"

namespace quire::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RayFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  // Returns its path.
  std::string write(const std::string& path, const std::string& text = "a library") {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    return root_ + path;
  }
  std::string root_ = testing::TempDir() + "ray_files/";
};

TEST_F(RayFiles, ItsLibraryIsFoundInTheFirstPythonThatHasIt) {
  const std::string systems = write("usr/local/lib/python3.12/dist-packages/ray/cpp/lib/libray_api.so");
  EXPECT_EQ(find_ray_api({}, root_).value(), systems);
  const std::string active = write("env/lib/python3.11/site-packages/ray/cpp/lib/libray_api.so");
  write(std::string("env/lib/python3.11/site-packages/ray_cpp-") + ray_version() + ".dist-info/RECORD");
  EXPECT_EQ(find_ray_api({.python = {.virtual_env = root_ + "env"}}, root_).value(), active);
  write("bin/bin/python3");
  const std::string in_path = write("bin/lib/python3.10/site-packages/ray/cpp/lib/libray_api.so");
  EXPECT_EQ(find_ray_api({.python = {.path = "/nowhere:" + root_ + "bin/bin"}}, root_).value(), in_path);
}

TEST_F(RayFiles, ItsLibraryIsTheOneThatIsNamed) {
  write("usr/lib/python3/dist-packages/ray/cpp/lib/libray_api.so");
  const std::string named = write("named/cpp/lib/libray_api.so");
  for (const std::string& way : {named, root_ + "named", root_ + "named/cpp", root_ + "named/cpp/lib"})
    EXPECT_EQ(find_ray_api({.ray_cpp = way}, root_).value(), named) << way;
  EXPECT_EQ(find_ray_api({.ray_cpp = root_ + "other"}, root_).status().message(),
            "QUIRE_RAY_CPP is " + root_ + "other, and there is no libray_api.so");
}

TEST_F(RayFiles, WithoutItsLibraryItSaysWhatToInstall) {
  const Status none = find_ray_api({}, root_).status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr(std::string("pip install \"ray[cpp]==") + ray_version() + "\""));
}

TEST_F(RayFiles, OfAnotherVersionIsRefused) {
  write("usr/lib/python3/dist-packages/ray/cpp/lib/libray_api.so");
  write("usr/lib/python3/dist-packages/ray_cpp-1.13.0.dist-info/RECORD");
  const Status other = find_ray_api({}, root_).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(other.message(), AllOf(HasSubstr("is of Ray 1.13.0"), HasSubstr(ray_version())));
}

TEST_F(RayFiles, TheClusterOfThisHostIsTheLastOneThatWasStarted) {
  EXPECT_EQ(ray_address("", root_).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ray_address("auto", root_).status().message(), HasSubstr("`ray start --head`"));
  write("ray/ray_current_cluster", "10.1.2.3:6379");
  EXPECT_EQ(ray_address("", root_).value(), "10.1.2.3:6379");
  EXPECT_EQ(ray_address("auto", root_).value(), "10.1.2.3:6379");
  EXPECT_EQ(ray_address("head:6380", root_).value(), "head:6380");
  for (const char* wrong :
       {"ray://head:10001", "http://head:8265", "head", ":6379", "head:", "head:port", "head:123456"})
    EXPECT_EQ(ray_address(wrong, root_).status().code(), StatusCode::kInvalidArgument) << wrong;
}

TEST(RayRanks, WithoutTheModuleSayHowItIsBuilt) {
  const auto started = RayRanks::start({.library = "/nowhere/libquire_ray.so",
                                        .ray_api = "/nowhere/libray_api.so",
                                        .address = "127.0.0.1:6379",
                                        .program = "/bin/true",
                                        .environments = {{}}});
  EXPECT_EQ(started.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(started.status().message(), AllOf(HasSubstr("/nowhere/libquire_ray.so"), HasSubstr("-DQUIRE_RAY=ON")));
}

// A record as Ray writes it: keys of its fields, lengths, numbers.
std::string node_record(const std::string& address, double cpus, bool is_alive = true) {
  std::string amount(reinterpret_cast<const char*>(&cpus), sizeof(cpus));
  const std::string entry = std::string("\x0a\x03") + "CPU" + "\x11" + amount;
  const std::string memory = std::string("\x0a\x06memory\x11") + amount;
  std::string record = std::string("\x0a\x02id\x12") + static_cast<char>(address.size()) + address;
  record += std::string("\x28\xff\xff\x03", 4);  // a port
  if (!is_alive) record += "\x38\x01";           // its state
  record += "\x42\x05hosty";                     // its host's name
  record += std::string("\x5a") + static_cast<char>(memory.size()) + memory;
  record += std::string("\x5a") + static_cast<char>(entry.size()) + entry;
  record += std::string("\xb8\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12);  // a time
  return record;
}

TEST(RayNodes, AreReadFromRaysRecords) {
  const RayNode node = parse_ray_node(node_record("10.0.0.1", 4)).value();
  EXPECT_EQ(node.address, "10.0.0.1");
  EXPECT_EQ(node.name, "hosty");
  EXPECT_EQ(node.cpus, 4);
  EXPECT_TRUE(node.is_alive);
  EXPECT_FALSE(parse_ray_node(node_record("10.0.0.1", 4, false)).value().is_alive);
}

TEST(RayNodes, OfABrokenRecordAreAnErrorWhereverItIsCut) {
  const std::string whole = node_record("10.0.0.1", 4);
  int errors = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto node = parse_ray_node(whole.substr(0, length));
    if (!node.ok()) ++errors;
  }
  EXPECT_GT(errors, 40);
  EXPECT_EQ(parse_ray_node("\x12\x7f"
                           "10.0")
                .status()
                .code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(parse_ray_node("\x5a\x02\x0a\x09").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(parse_ray_node(std::string(20, '\xff')).status().code(), StatusCode::kDataLoss);
}

TEST(RayNodes, HaveRoomForRanksThatFitOnOneEach) {
  const std::vector<RayNode> nodes = {{.address = "10.0.0.1", .name = "first", .is_alive = true, .cpus = 3},
                                      {.address = "10.0.0.2", .name = "second", .is_alive = true, .cpus = 2},
                                      {.address = "10.0.0.3", .name = "third", .is_alive = false, .cpus = 64}};
  EXPECT_TRUE(check_room(nodes, 5, 1).ok());
  EXPECT_TRUE(check_room(nodes, 2, 2).ok());
  EXPECT_THAT(check_room(nodes, 3, 2).message(),
              HasSubstr("3 more ranks with 2 each were asked for, and of its nodes first (10.0.0.1) has 3, second "
                        "(10.0.0.2) has 2"));
  EXPECT_EQ(check_room(nodes, 1, 4).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_is_node(nodes, {"127.0.0.1", "10.0.0.2"}, "head:6379").ok());
  EXPECT_THAT(check_is_node(nodes, {"127.0.0.1", "10.0.0.3"}, "head:6379").message(),
              HasSubstr("`ray start --address=head:6379`"));
}

TEST(RayNodes, OfAClusterOfAnotherVersionAreRefused) {
  EXPECT_TRUE(check_ray_version(R"({"ray_version": "2.49.2", "python_version": "3.11.7"})", "2.49.2").ok());
  EXPECT_THAT(check_ray_version(R"({"ray_version": "2.50.0"})", "2.49.2").message(),
              AllOf(HasSubstr("version is 2.50.0"), HasSubstr("ray[cpp]==2.49.2")));
  for (const char* broken : {"", "{}", R"({"ray_version)", R"({"ray_version": ")", R"({"ray_version": 2})"})
    EXPECT_THAT(check_ray_version(broken, "2.49.2").message(), HasSubstr("version is unknown")) << broken;
}

}  // namespace
}  // namespace quire::comm
