// Addresses as users and servers write them.
#include "net/url.h"

#include <gtest/gtest.h>

namespace quire::net {
namespace {

TEST(Url, AnAddressIsReadIntoItsParts) {
  const Url url = *parse_url("https://Example.com:8443/a/b?c=d#e");
  EXPECT_TRUE(url.https);
  EXPECT_EQ(url.host, "example.com");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.target, "/a/b?c=d");
  EXPECT_EQ(url.origin(), "https://example.com:8443");
  EXPECT_EQ(parse_url("http://[::1]:80")->text(), "http://[::1]/");
  EXPECT_EQ(parse_url("https://host?x")->target, "/?x");
}

TEST(Url, WhatIsNoAddressOfHttpIsRefused) {
  for (const char* text : {"", "huggingface.co", "ftp://host/", "file:///etc/passwd", "https://", "https://user@host/",
                           "https://host:0/", "https://host:99999/", "https://host:1x/", "https://ho st/",
                           "https://host/\r\nX: y", "https://h\x01st/", "https://[::1", "https://host%00/"}) {
    EXPECT_FALSE(parse_url(text).ok()) << text;
  }
  EXPECT_FALSE(parse_url("https://host/" + std::string(10'000, 'a')).ok());
}

TEST(Url, AReferenceIsReadFromWhereItStands) {
  const Url base = *parse_url("https://host:444/a/b?c");
  EXPECT_EQ(resolve_reference(base, "/x?y")->text(), "https://host:444/x?y");
  EXPECT_EQ(resolve_reference(base, "x")->text(), "https://host:444/a/x");
  EXPECT_EQ(resolve_reference(base, "?y")->text(), "https://host:444/a/b?y");
  EXPECT_EQ(resolve_reference(base, "//other/x")->text(), "https://other/x");
  EXPECT_EQ(resolve_reference(base, "http://other/x?u=https://third/")->text(), "http://other/x?u=https://third/");
  EXPECT_EQ(resolve_reference(base, "/x?u=https://third/")->text(), "https://host:444/x?u=https://third/");
  EXPECT_FALSE(resolve_reference(base, "javascript:alert(1)").ok());
  EXPECT_FALSE(resolve_reference(base, "/a b").ok());
}

TEST(Url, AnotherPortOrSchemeIsAnotherOrigin) {
  const Url url = *parse_url("https://host/");
  EXPECT_TRUE(same_origin(url, *parse_url("https://HOST:443/other")));
  EXPECT_FALSE(same_origin(url, *parse_url("https://host:444/")));
  EXPECT_FALSE(same_origin(url, *parse_url("http://host:443/")));
  EXPECT_FALSE(same_origin(url, *parse_url("https://host.evil/")));
}

}  // namespace
}  // namespace quire::net
