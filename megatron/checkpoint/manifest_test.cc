#include "megatron/checkpoint/manifest.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/crc32c.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kFirstLineBytes = 22;

Manifest Example() {
  Manifest manifest;
  manifest.run_id = "0123456789abcdef";
  manifest.iteration = 1000;
  manifest.chunk_bytes = 32;
  manifest.shard_count = 2;
  manifest.ints = {{"consumed_train_samples", 16000}, {"lowest", INT64_MIN}};
  manifest.floats = {{"inf", HUGE_VAL}, {"loss", 0.1}, {"negative", -1e300}, {"one", 1.0}};
  manifest.strings = {{"config", std::string("a \"b\" \\ \n\0\xff", 11)}};
  manifest.shards = {{0, 128 + 48 + 2}, {1, 128 + 48}};
  manifest.tensors = {
      {"bias", DType::kBFloat16, Shape(), {{0, 128, {Shape(), Shape()}, {7}}}},
      {"empty", DType::kFloat32, {0, 3}, {}},
      {"weight",
       DType::kFloat32,
       {4, 6},
       {{0, 130, {{0, 0}, {2, 6}}, {1, 2}}, {1, 128, {{2, 0}, {2, 6}}, {0xdeadbeef, 4}}}}};
  return manifest;
}

// The text with a first line that fits the rest.
std::string Seal(absl::string_view body) {
  return absl::StrFormat("{\"crc32c\":\"%08x\",\n%s", Crc32c(body), body);
}

std::string Body() { return SerializeManifest(Example()).substr(kFirstLineBytes); }

// ParseManifest of the example with `from` replaced by `to`.
absl::Status ParseEdited(absl::string_view from, absl::string_view to) {
  const std::string body = Body();
  EXPECT_THAT(body, HasSubstr(std::string(from)));
  const size_t at = body.find(std::string(from));
  return ParseManifest(Seal(body.substr(0, at) + std::string(to) + body.substr(at + from.size())))
      .status();
}

TEST(ManifestTest, IsSpelledAsDocumented) {
  EXPECT_EQ(Body(),
            "\"format\":\"megatron-checkpoint\",\n"
            "\"version\":1,\n"
            "\"run_id\":\"0123456789abcdef\",\n"
            "\"iteration\":1000,\n"
            "\"chunk_bytes\":32,\n"
            "\"shard_count\":2,\n"
            "\"ints\":{\n"
            "\"consumed_train_samples\":16000,\n"
            "\"lowest\":-9223372036854775808},\n"
            "\"floats\":{\n"
            "\"inf\":\"inf\",\n"
            "\"loss\":0.1,\n"
            "\"negative\":-1e+300,\n"
            "\"one\":1},\n"
            "\"strings\":{\n"
            "\"config\":\"a \\u0022b\\u0022 \\u005c \\u000a\\u0000\\u00ff\"},\n"
            "\"shards\":[\n"
            "{\"file\":\"shard_00000_of_00002.bin\",\"bytes\":178},\n"
            "{\"file\":\"shard_00001_of_00002.bin\",\"bytes\":176}],\n"
            "\"tensors\":[\n"
            "{\"name\":\"bias\",\"dtype\":\"bf16\",\"shape\":[],\"pieces\":[\n"
            "{\"shard\":0,\"offset\":128,\"bytes\":2,\"start\":[],\"extent\":[],"
            "\"crc32c\":\"00000007\"}]},\n"
            "{\"name\":\"empty\",\"dtype\":\"fp32\",\"shape\":[0,3],\"pieces\":[]},\n"
            "{\"name\":\"weight\",\"dtype\":\"fp32\",\"shape\":[4,6],\"pieces\":[\n"
            "{\"shard\":0,\"offset\":130,\"bytes\":48,\"start\":[0,0],\"extent\":[2,6],"
            "\"crc32c\":\"0000000100000002\"},\n"
            "{\"shard\":1,\"offset\":128,\"bytes\":48,\"start\":[2,0],\"extent\":[2,6],"
            "\"crc32c\":\"deadbeef00000004\"}]}]}\n");
}

TEST(ManifestTest, ComesBack) {
  const std::string text = SerializeManifest(Example());
  const auto parsed = ParseManifest(text);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(SerializeManifest(*parsed), text);
  EXPECT_THAT(CheckComplete(*parsed), IsOk());
  EXPECT_EQ(parsed->ints, Example().ints);
  EXPECT_EQ(parsed->floats, Example().floats);
  EXPECT_EQ(parsed->strings, Example().strings);
  EXPECT_EQ(FindTensor(*parsed, "weight")->pieces[1].crcs[0], 0xdeadbeefu);
  EXPECT_EQ(FindTensor(*parsed, "other"), nullptr);
}

TEST(ManifestTest, EveryDoubleComesBackBitForBit) {
  for (double value : {0.0, -0.0, 1.0 / 3, 5e-324, std::numeric_limits<double>::max(), 1e22,
                       123456.0, -HUGE_VAL}) {
    Manifest manifest = Example();
    manifest.floats = {{"x", value}};
    const auto parsed = ParseManifest(SerializeManifest(manifest));
    ASSERT_THAT(parsed, IsOk()) << value;
    EXPECT_EQ(parsed->floats.at("x"), value);
    EXPECT_EQ(std::signbit(parsed->floats.at("x")), std::signbit(value));
  }
  Manifest manifest = Example();
  manifest.floats = {{"x", std::nan("")}};
  EXPECT_TRUE(std::isnan(ParseManifest(SerializeManifest(manifest))->floats.at("x")));
}

TEST(ManifestTest, EveryFlippedBitIsDataLoss) {
  std::string text = SerializeManifest(Example());
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_THAT(ParseManifest(text), StatusIs(absl::StatusCode::kDataLoss)) << bit;
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

TEST(ManifestTest, EveryTruncationIsRefusedEvenWithItsChecksum) {
  const std::string body = Body();
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_THAT(ParseManifest(Seal(body.substr(0, size))), StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(ParseManifest(body.substr(0, size)), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(ManifestTest, OtherSpellingsOfTheSameAreRefused) {
  EXPECT_FALSE(ParseEdited(":1000,", ":01000,").ok());
  EXPECT_FALSE(ParseEdited(":1000,", ": 1000,").ok());
  EXPECT_FALSE(ParseEdited(":1000,", ":1e3,").ok());
  EXPECT_FALSE(ParseEdited("\"one\":1}", "\"one\":1.0}").ok());
  EXPECT_FALSE(ParseEdited("\"a \\u0022b", "\"\\u0061 \\u0022b").ok());
  EXPECT_FALSE(ParseEdited("]}]}\n", "]}]}\n\n").ok());
  EXPECT_FALSE(ParseEdited("\"bytes\":48", "\"bytes\":49").ok());
}

TEST(ManifestTest, DuplicateNamesAreRefused) {
  EXPECT_FALSE(ParseEdited("\"lowest\":-9223372036854775808", "\"consumed_train_samples\":1").ok());
  EXPECT_FALSE(ParseEdited("\"name\":\"empty\"", "\"name\":\"bias\"").ok());
}

TEST(ManifestTest, HostileNamesAreRefused) {
  for (const char* name :
       {"../weight", "/etc/passwd", "a/../b", "a b", "", "weight\\u0000", "a/"}) {
    EXPECT_FALSE(ParseEdited("\"name\":\"weight\"", absl::StrFormat("\"name\":\"%s\"", name)).ok())
        << name;
  }
  EXPECT_FALSE(ParseEdited("shard_00001_of_00002.bin", "../../../../../etc/passwd").ok());
  EXPECT_FALSE(
      ParseEdited("\"name\":\"weight\"", "\"name\":\"" + std::string(257, 'w') + "\"").ok());
}

TEST(ManifestTest, HostileSizesAreRefusedWithoutOverflow) {
  EXPECT_FALSE(ParseEdited("\"shape\":[4,6]", "\"shape\":[4611686018427387904,6]").ok());
  EXPECT_FALSE(ParseEdited("\"shape\":[4,6]", "\"shape\":[4611686018427387904,0]").ok());
  EXPECT_FALSE(ParseEdited("\"shape\":[4,6]", "\"shape\":[-4,-6]").ok());
  EXPECT_FALSE(ParseEdited("\"shape\":[4,6]", "\"shape\":[4,6,1,1,1,1,1,1]").ok());
  EXPECT_FALSE(ParseEdited("\"extent\":[2,6]", "\"extent\":[9223372036854775807,6]").ok());
  EXPECT_FALSE(ParseEdited("\"start\":[2,0]", "\"start\":[9223372036854775807,0]").ok());
  EXPECT_FALSE(ParseEdited("\"start\":[2,0]", "\"start\":[2]").ok());
  EXPECT_FALSE(ParseEdited("\"offset\":130", "\"offset\":9223372036854775807").ok());
  EXPECT_FALSE(ParseEdited("\"offset\":130", "\"offset\":-1").ok());
  EXPECT_FALSE(ParseEdited("\"offset\":130", "\"offset\":131").ok());
  EXPECT_FALSE(ParseEdited("\"shard\":1", "\"shard\":2").ok());
  EXPECT_FALSE(ParseEdited("\"shard_count\":2", "\"shard_count\":2147483647").ok());
  EXPECT_FALSE(ParseEdited("\"chunk_bytes\":32", "\"chunk_bytes\":0").ok());
  EXPECT_FALSE(ParseEdited("\"chunk_bytes\":32", "\"chunk_bytes\":64").ok());
  EXPECT_FALSE(ParseEdited("\"iteration\":1000", "\"iteration\":99999999999999999999").ok());
}

TEST(ManifestTest, ErrorsSayWhereOrWhat) {
  EXPECT_THAT(ParseEdited("\"version\":1", "\"version\":2"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has version 2")));
  EXPECT_THAT(ParseEdited("\"ints\"", "\"inst\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("at byte 1")));
  EXPECT_THAT(ParseEdited("\"offset\":130", "\"offset\":131"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("before tensor 'weight'")));
}

TEST(ManifestTest, CompleteMeansEveryShardAndEveryElementOnce) {
  Manifest manifest = Example();
  manifest.shard_count = 3;
  EXPECT_THAT(CheckComplete(manifest), StatusIs(absl::StatusCode::kDataLoss));
  manifest = Example();
  manifest.tensors[2].pieces[1].rectangle.start[0] = 1;
  EXPECT_THAT(CheckManifest(manifest), IsOk());
  EXPECT_THAT(CheckComplete(manifest),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'weight'")));
}

TEST(ManifestTest, PartsMergeIntoTheWhole) {
  std::vector<Manifest> parts(2, Example());
  parts[0].shards = {Example().shards[0]};
  parts[1].shards = {Example().shards[1]};
  parts[0].tensors[2].pieces.pop_back();
  parts[1].tensors.erase(parts[1].tensors.begin());
  parts[1].tensors[1].pieces.erase(parts[1].tensors[1].pieces.begin());
  for (const Manifest& part : parts) EXPECT_THAT(ParseManifest(SerializeManifest(part)), IsOk());
  const auto merged = MergeParts(parts);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(SerializeManifest(*merged), SerializeManifest(Example()));

  std::swap(parts[0], parts[1]);
  EXPECT_FALSE(MergeParts(parts).ok());
  std::swap(parts[0], parts[1]);
  parts[1].iteration = 999;
  EXPECT_THAT(MergeParts(parts), StatusIs(absl::StatusCode::kDataLoss));
  parts[1].iteration = 1000;
  parts[1].tensors[1].dtype = DType::kInt32;
  EXPECT_THAT(MergeParts(parts), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace megatron
