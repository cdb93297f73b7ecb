// Templates and inputs that mean harm: every one ends soon, with an error or a text, and never more.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/slowdown.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

Status render(std::string_view source, const boost::json::object& variables = {}, TemplateLimits limits = {}) {
  auto parsed = ChatTemplate::parse(source, limits);
  return parsed.ok() ? parsed->render(variables, {}).status() : parsed.status();
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

struct Attack {
  std::string source;
  StatusCode code;
};

class Attacks : public testing::TestWithParam<Attack> {};

TEST_P(Attacks, EndInAnError) {
  const Status status = render(GetParam().source);
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_THAT(status.message(), testing::HasSubstr("chat template"));
}

constexpr StatusCode kLimit = StatusCode::kResourceExhausted;
constexpr StatusCode kWrong = StatusCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Limits, Attacks,
    testing::Values(
        Attack{"{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% "
               "endfor %}{% endfor %}",
               kLimit},
        Attack{"{{ 'a' * 10**9 }}", kLimit}, Attack{"{{ 'a' * 10**18 }}", kLimit},
        Attack{"{{ ([0] * 10**9)|length }}", kLimit}, Attack{"{{ (('a' * 10**6) * 10**6)|length }}", kLimit},
        Attack{"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
               kLimit},
        Attack{"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
               kLimit},
        Attack{"{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}", kLimit},
        Attack{"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
               "ns.s }}",
               kLimit},
        Attack{"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
               "ns.s|tojson }}",
               kLimit},
        Attack{
            "{% set a = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set a.s = [a.s, a.s] %}{% set a.t = [a.t, "
            "a.t] %}{% endfor %}{{ a.s == a.t }}",
            kLimit},
        Attack{"{% set a = namespace(s=(1,)) %}{% for i in range(60) %}{% set a.s = (a.s, a.s) %}{% endfor %}{{ {a.s: "
               "1} }}",
               kWrong},
        Attack{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kLimit},
        Attack{"{% macro a() %}{{ b() }}{{ caller }}{% endmacro %}{% macro b() %}{% call a() %}{% endcall %}{% "
               "endmacro %}{{ b() }}",
               kLimit},
        Attack{"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", kLimit},
        Attack{"{% for x in range(100000) %}{{ 'aaaaaaaaaa' * 100000 }}{% endfor %}", kLimit},
        Attack{"{{ ('x' * 1000000).replace('', 'y' * 1000) }}", kLimit},
        Attack{"{{ ('y' * 100000).join(range(100000)|map('string')) }}", kLimit},
        Attack{"{{ range(100000)|join('y' * 100000) }}", kLimit}, Attack{"{{ '%1000000000d' % 1 }}", kLimit},
        Attack{"{{ '%.1000000000f' % 1.5 }}", kWrong}, Attack{"{{ '%*d' % (10**10, 1) }}", kLimit},
        Attack{"{{ '{:1000000000}'.format(1) }}", kLimit},
        Attack{"{{ '{:99999999999999999999}'.format('x') }}", kLimit}, Attack{"{{ 'x'.center(10**10) }}", kLimit},
        Attack{"{{ 'x'.zfill(10**10) }}", kLimit}, Attack{"{{ '\\t'.expandtabs(10**12) }}", kLimit},
        Attack{"{{ 'a\\nb'|indent(10**10) }}", kLimit}, Attack{"{{ [1]|tojson(indent=10**10) }}", kLimit},
        Attack{"{{ [1]|batch(10**10, 0)|list }}", kLimit}, Attack{"{{ [1]|slice(10**10)|list }}", kLimit},
        Attack{"{{ 10**10**10 }}", kWrong}, Attack{"{{ 9223372036854775807 + 1 }}", kWrong},
        Attack{"{{ -9223372036854775807 - 2 }}", kWrong}, Attack{"{{ 99999999999999999999 }}", kWrong},
        Attack{"{{ 1e308 * 10 ** 400 }}", kWrong}, Attack{"{{ range(10**18) }}", kWrong},
        Attack{"{{ range(-9223372036854775807, 9223372036854775807) }}", kWrong},
        Attack{"{{ ''.__class__.__mro__[1].__subclasses__() }}", kWrong},
        Attack{"{{ cycler.__init__.__globals__.os.popen('id').read() }}", kWrong},
        Attack{"{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}", kWrong},
        Attack{"{{ namespace.__init__.__globals__ }}", kWrong}, Attack{"{% include '/etc/passwd' %}", kWrong},
        Attack{"{{ ''|attr('__class__')|attr('__mro__')|list|first|attr('x') }}", kWrong},
        Attack{"{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.me.me.l }}{{ 1 // 0 }}",
               kWrong},
        // Chains of values that only their last holder keeps alive.
        Attack{"{% set a = namespace(s=[1]) %}{% for i in range(99999) %}{% set a.s = [a.s.index] %}{% endfor %}",
               kLimit},
        Attack{"{% set a = namespace(s=1) %}{% for i in range(99999) %}{% set a.s = cycler(a.s) %}{% endfor %}",
               kLimit},
        Attack{"{% set a = namespace(s=1) %}{% for i in range(99999) %}{% set a.s = joiner(a.s) %}{% endfor %}",
               kLimit},
        Attack{"{{ ['a']|map(*(['map'] * 20000))|list }}", kLimit},
        Attack{"{{ ['a']|map(*(['map'] * 900))|list }}", kLimit}, Attack{"{{ 9223372036854775807|round(-1) }}", kWrong},
        Attack{"{{ dict(a=1, **{'a': 2}) }}", kWrong}));

INSTANTIATE_TEST_SUITE_P(
    Nesting, Attacks,
    testing::Values(
        Attack{"{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}", kLimit},
        Attack{"{{ " + repeat("[", 100000), kLimit}, Attack{"{{ " + repeat("not ", 100000) + "1 }}", kLimit},
        Attack{"{{ " + repeat("-", 100000) + "1 }}", kLimit},
        Attack{"{{ 1" + repeat(" if 1 else 2", 50000) + " }}", kLimit},
        Attack{"{{ x" + repeat(".a", 100000) + " }}", kLimit}, Attack{"{{ x" + repeat("|upper", 60000) + " }}", kLimit},
        Attack{"{{ x" + repeat("()", 100000) + " }}", kLimit}, Attack{"{{ f(" + repeat("a[", 60000), kLimit},
        Attack{repeat("{% if 1 %}", 50000), kLimit}, Attack{repeat("{% for x in y %}", 50000), kLimit},
        Attack{repeat("{% macro m() %}", 50000), kLimit}, Attack{repeat("{{ a }}", 140000), kLimit},
        Attack{std::string(2 << 20, 'x') + "{{", kLimit}, Attack{"{{ 1 is in " + repeat("{1:", 50000), kLimit}));

TEST(HostileTemplates, MayEndWithoutAnErrorButEnd) {
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}{% set ns.l = [ns] %}{{ ns.l }}").ok());
  EXPECT_TRUE(
      render("{% for i in range(3) %}{% set x = loop %}{% set ns = namespace(l=loop, m=x) %}{% endfor %}").ok());
  EXPECT_TRUE(
      render("{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}{% set ns.m = m %}{{ ns.m() }}").ok());
  EXPECT_TRUE(render("{{ " + repeat("1 + ", 400) + "1 }}").ok());
  EXPECT_TRUE(render("{{ " + repeat("(", 100) + "1" + repeat(")", 100) + " }}").ok());
}

TEST(HostileTemplates, QuadraticSearchesStayWithinTheTimeLimit) {
  boost::json::object variables{{"s", std::string(1 << 20, 'a')}, {"n", std::string(1 << 16, 'a') + "b"}};
  EXPECT_TRUE(render("{{ s.find(n) }}{{ n in s }}{{ s.count(n) }}{{ s.replace(n, 'x')|length }}{{ s.split(n)|length }}",
                     variables)
                  .ok());
  EXPECT_EQ(render("{% for i in range(100000) %}{{ s.rfind(n) }}{{ s.rsplit(n) }}{{ s.rpartition(n) }}{% endfor %}",
                   variables)
                .code(),
            StatusCode::kResourceExhausted);
}

TEST(HostileTemplates, SearchesFromTheRightAreNotQuadratic) {
  if (kSlowdown > 1) GTEST_SKIP() << "the limit of time of templates comes first";
  const boost::json::object variables{{"s", std::string(8 << 20, 'a')}, {"n", "b" + std::string(1 << 20, 'a')}};
  EXPECT_TRUE(render("{{ s.rpartition(n)|length }}{{ s.rfind(n) }}{{ s.rsplit(n)|length }}", variables).ok());
}

TEST(HostileTemplates, AMacroOfManyParametersIsPaidForByTheParameter) {
  std::string parameters = "p";
  for (int i = 0; i < 100'000; ++i) parameters += ",p" + std::to_string(i);
  EXPECT_EQ(
      render("{% macro m(" + parameters + ") %}{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}").code(),
      kLimit);
}

TEST(LargeInput, IsRenderedWithinTheLimits) {
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += "a line of twenty-four...\n";
  const boost::json::object variables{{"s", lines}};
  for (const std::string_view source :
       {"{{ s.replace('\n', ' ') }}", "{{ s|replace('.', '!') }}", "{{ s.split('\n')|join(', ') }}",
        "{{ ' '.join(s.splitlines()) }}", "{{ s|indent(2) }}", "{{ s.expandtabs() }}"}) {
    const Status status = render(source, variables);
    EXPECT_TRUE(status.ok()) << source << ": " << status.message();
  }
  std::string digits = "1";
  for (int i = 0; i < 1'000'000; ++i) digits += "_1";
  EXPECT_TRUE(render("{{ s|float }}", {{"s", std::move(digits)}}).ok());
}

// What a loop took is given back when it ends.
TEST(LargeInput, LoopsAreNotKept) {
  const Status status = render(
      "{% for i in range(400) %}{% for j in range(400) %}{% for k in [1] %}{% endfor %}{% endfor %}{% endfor %}");
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(HostileInput, NestedBeyondTheLimitIsRefused) {
  boost::json::value deep = 1;
  for (int i = 0; i < 5000; ++i) deep = boost::json::array{std::move(deep)};
  const Status status = render("{{ x }}", {{"x", std::move(deep)}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

TEST(HostileInput, IllFormedUtf8BecomesReplacementCharacters) {
  auto parsed = ChatTemplate::parse("{{ x }}{{ x|length }}{{ x[1:] }}{{ x|upper }}{{ x|tojson }}");
  ASSERT_TRUE(parsed.ok());
  const auto rendered = parsed->render({{"x", "a\xFF\xE6\x97"}}, {});
  ASSERT_TRUE(rendered.ok());
  EXPECT_THAT(concatenate(*rendered), testing::StartsWith("a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                                                          "4"));
}

TEST(HostileInput, NumbersBeyond64BitsSignedPassThrough) {
  auto parsed = ChatTemplate::parse("{{ x }} {{ x|tojson }} {{ [x]|tojson }} {{ x == x }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(concatenate(*parsed->render({{"x", 18446744073709551615ull}}, {})),
            "18446744073709551615 18446744073709551615 [18446744073709551615] True");
  auto keys = ChatTemplate::parse("{{ {x: 'it', 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}[y] }}");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(concatenate(*keys->render({{"x", 18446744073709551615ull}, {"y", 18446744073709551615ull}}, {})), "it");
}

TEST(Trust, FollowsEveryByteOfTheUsersText) {
  const auto pieces_of = [](std::string_view source) {
    auto parsed = ChatTemplate::parse(source);
    EXPECT_TRUE(parsed.ok());
    auto rendered = parsed->render(
        {{"u", " <|x|> "}, {"bos", "user's"}, {"l", {"a", "b"}}, {"d", {{"<|k|>", 1}}}, {"n", 60}, {"lt", "<"}},
        {{"bos", "<s>"}});
    EXPECT_TRUE(rendered.ok());
    std::string text;
    for (const TextPiece& piece : *rendered) text += piece.trusted ? piece.text : "{" + piece.text + "}";
    return text;
  };
  EXPECT_EQ(pieces_of("{{ bos }}<|im|>{{ u }}!"), "<s><|im|>{ <|x|> }!");
  EXPECT_EQ(pieces_of("{{ ('<|' + u|trim + '|>') }}"), "<|{<|x|>}|>");
  EXPECT_EQ(pieces_of("{{ ('[' ~ u ~ ']')|upper|trim }}"), "[{ <|X|> }]");
  EXPECT_EQ(pieces_of("{{ l|join('-') }}{{ '%s=%s' % ('k', u) }}"), "{a}-{b}k={ <|x|> }");
  EXPECT_EQ(pieces_of("{{ 'a {} b'.format(u) }}"), "a { <|x|> } b");
  EXPECT_EQ(pieces_of("{{ ('k' ~ u)[:3] }}{{ ('ab' ~ u).split('b')[1] }}"), "k{ < <|x|> }");
  EXPECT_EQ(pieces_of("{{ u.replace('x', 'T') }}"), "{ <|}T{|> }");
  EXPECT_EQ(pieces_of("{% set c %}({{ u }}){% endset %}{{ c }}{{ 1 }}"), "({ <|x|> })1");
  EXPECT_EQ(pieces_of("{{ l|tojson }}{{ l }}"), "{[\"a\", \"b\"]['a', 'b']}");
  EXPECT_EQ(pieces_of("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u)|trim }}"), "<{ <|x|> }>");
  EXPECT_EQ(pieces_of("{{ dict(**d)|first }}{{ dict(t=1)|first }}"), "{<|k|>}t");
  EXPECT_EQ(pieces_of("{% macro m() %}{{ kwargs|first }}{% endmacro %}{{ m(**d) }}"), "{<|k|>}");
  EXPECT_EQ(pieces_of("{{ '%c' % n }}{{ '{:c}'.format(n) }}{{ '{:{}>2}'.format(1, '<') }}"), "{<<}<1");
  EXPECT_EQ(pieces_of("{{ '{:{}>2}'.format(1, lt) }}"), "{<}1");
}

TEST(Errors, NameTheLineAndTheTemplatesOwnMessage) {
  const Status status = render("a\nb\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              testing::AllOf(testing::HasSubstr("line 3"), testing::HasSubstr("roles must alternate")));
  EXPECT_THAT(render("\n\n{% bad %}").message(), testing::HasSubstr("line 3"));
  EXPECT_THAT(render("\n{{ missing.x }}").message(), testing::HasSubstr("line 2: 'missing' is undefined"));
}

TEST(Errors, AreShortAndValidUtf8WhateverTheyQuote) {
  std::string umlauts;
  for (int i = 0; i < 100'000; ++i) umlauts += "\u00fc";
  for (const std::string_view source :
       {"{{ '{:' ~ u ~ '}' }}{{ ('{:x' ~ u ~ '}').format(1) }}", "{{ [1]|map(u) }}", "{{ x[u].y }}",
        "{{ raise_exception('x' ~ u) }}", "{{ ''.format_map({})[u].y }}",
        "{{ ('__x' ~ u ~ '__') in {} }}{{ x['__x' ~ u ~ '__'].y }}", "{{ '%(a)s' % u }}",
        "{{ ('{' ~ u ~ '}').format() }}",
        "{{ "
        "u\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc"
        "\u00fc\u00fc\u00fc 1 }}"}) {
    const Status status = render(source, {{"u", umlauts}, {"x", "a"}});
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_LT(status.message().size(), 2000u) << source;
    EXPECT_TRUE(is_valid_utf8(status.message())) << source;
  }
}

// Real templates with bytes flipped, cut out, doubled and spliced: whatever comes of it, it is a status or a text.
TEST(MutatedTemplates, NeverCrashOrHang) {
  std::vector<std::string> sources;
  std::vector<boost::json::object> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(QUIRE_TEST_DATA) / "templates")) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    if (entry.path().extension() == ".jinja") sources.push_back(text.str());
    if (entry.path().string().ends_with(".golden.json")) {
      const boost::json::value goldens = boost::json::parse(text.str());
      for (const auto& [name, golden] : goldens.as_object()) {
        const auto& input = golden.at("input");
        inputs.push_back(input.is_string() ? boost::json::parse(input.get_string()).as_object() : input.as_object());
      }
    }
  }
  std::sort(sources.begin(), sources.end());
  ASSERT_FALSE(sources.empty());
  const unsigned seed = 20240726;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % std::max<size_t>(bound, 1)); };
  TemplateLimits limits;
  limits.max_steps = 200'000;
  limits.max_time = std::chrono::milliseconds(500);
  static constexpr std::string_view kTokens[] = {
      "{{",     "}}", "{%",   "%}",     "-%}",   "{%-",    "(",  ")",  "[",         "]",       "|",
      "'",      "\"", " if ", " else ", " for ", "endfor", ".",  "**", "* 9999999", "|tojson", "|length",
      "[::-1]", "{#", "#}",   " is ",   " in ",  "loop",   "\\", "~",  "%"};
  int rendered = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string source = sources[below(sources.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(source.size());
      const size_t length = std::min(below(40), source.size() - at);
      switch (below(5)) {
        case 0:
          source[at] = static_cast<char>(random());
          break;
        case 1:
          source.erase(at, length);
          break;
        case 2:
          source.insert(at, source.substr(below(source.size()), length));
          break;
        case 3:
          source.insert(at, kTokens[below(std::size(kTokens))]);
          break;
        default: {
          const std::string& other = sources[below(sources.size())];
          source.replace(at, length, other.substr(below(other.size()), below(200)));
        }
      }
      if (source.empty()) source = "x";
    }
    auto parsed = ChatTemplate::parse(source, limits);
    if (!parsed.ok()) continue;
    rendered += parsed->render(inputs[below(inputs.size())], {}).ok() ? 1 : 0;
  }
  EXPECT_GT(rendered, 100);  // or the mutations test the lexer alone
}

}  // namespace
}  // namespace quire::text
