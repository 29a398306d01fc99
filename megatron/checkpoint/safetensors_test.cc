#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/safetensors_header.h"
#include "megatron/checkpoint/safetensors_index.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string WithLength(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + rest;
}

std::string FileOf(const std::string& header, int64_t data_bytes) {
  return WithLength(header.size(), header + std::string(static_cast<size_t>(data_bytes), 'x'));
}

// A header with one tensor of these fields.
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"a":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

TEST(SafetensorsHeaderTest, ReadsNamesTypesShapesAndMetadata) {
  const auto header = ParseSafetensorsHeader(FileOf(
      R"({"b":{"data_offsets":[12,14],"shape":[],"dtype":"BF16"},"__metadata__":{"format":"pt","ü\u00fc":""},)"
      R"("a/\"":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]} , "none":{"dtype":"I64","shape":[0,7],"data_offsets":[12,12]}}   )",
      14));
  ASSERT_THAT(header, IsOk());
  EXPECT_THAT(header->metadata, ElementsAre(Pair("format", "pt"), Pair("üü", "")));
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a/\"");
  EXPECT_EQ(header->tensors[0].dtype, "F32");
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(1, 3));
  EXPECT_EQ(header->tensors[1].name, "none");
  EXPECT_EQ(header->tensors[1].bytes(), 0);
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_TRUE(header->tensors[2].shape.empty());
  EXPECT_EQ(header->tensors[2].begin, 12);
}

TEST(SafetensorsHeaderTest, KnowsEveryTypeOfTheFormat) {
  const std::vector<std::pair<std::string, int>> bits = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, width] : bits) {
    const std::string header = One(name, "[8]", absl::StrCat("[0,", width, "]"));
    EXPECT_THAT(ParseSafetensorsHeader(FileOf(header, width)), IsOk()) << name;
    EXPECT_FALSE(ParseSafetensorsHeader(FileOf(header, width + 1)).ok()) << name;
  }
  EXPECT_FALSE(ParseSafetensorsHeader(FileOf(One("F4", "[3]", "[0,1]"), 1)).ok());
}

TEST(SafetensorsHeaderTest, OurTypesHaveTheirNames) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                      DType::kInt64, DType::kUInt8, DType::kUInt16}) {
    DType back;
    ASSERT_TRUE(FromSafetensorsName(SafetensorsName(dtype), &back)) << dtype;
    EXPECT_EQ(back, dtype);
  }
  DType dtype;
  EXPECT_FALSE(FromSafetensorsName("BOOL", &dtype));
}

TEST(SafetensorsHeaderTest, RefusesWhatTheFormatDoesNotAllow) {
  const std::string good = One("U8", "[2]", "[0,2]");
  ASSERT_THAT(ParseSafetensorsHeader(FileOf(good, 2)), IsOk());
  auto two = [](const std::string& a, const std::string& b) {
    return absl::StrCat(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)", a,
                        R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)", b, "}}");
  };
  ASSERT_THAT(ParseSafetensorsHeader(FileOf(two("[2,4]", "[0,2]"), 4)), IsOk());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "shorter"},
      {"1234567", "shorter"},
      {WithLength(0, ""), "'{'"},
      {WithLength(100'000'001, good), "at most"},
      {WithLength(~uint64_t{0}, good), "at most"},
      {WithLength(good.size() + 1, good), "bytes and the file"},
      {FileOf(" " + good, 2), "'{'"},
      {FileOf("\xef\xbb\xbf" + good, 2), "'{'"},
      {FileOf(good + "\n", 2), "'}'"},
      {FileOf("[]", 0), "'{'"},
      {FileOf(good + good, 2), "no JSON"},
      {FileOf(good + std::string("\0}", 2), 2), "zero byte"},
      {FileOf(good, 1), "bytes and the file has"},
      {FileOf(good, 3), "bytes and the file has"},
      {FileOf(two("[0,2]", "[1,3]"), 3), "begins at"},
      {FileOf(two("[0,2]", "[3,5]"), 5), "begins at"},
      {FileOf(two("[0,2]", "[0,2]"), 2), "begins at"},
      {FileOf(two("[1,3]", "[3,5]"), 5), "begins at"},
      {FileOf(One("U8", "[2]", "[2,0]"), 2), "size of its bytes"},
      {FileOf(One("U8", "[2]", "[0,1]"), 1), "size of its bytes"},
      {FileOf(One("U8", "[9223372036854775807,2]", "[0,2]"), 2), "size of its bytes"},
      {FileOf(One("F32", "[4611686018427387904]", "[0,0]"), 0), "size of its bytes"},
      {FileOf(One("U8", "[18446744073709551615]", "[0,2]"), 2), "too large"},
      {FileOf(One("U8", "[18446744073709551616]", "[0,2]"), 2), "no 64-bit integer"},
      {FileOf(One("U8", "[-2]", "[0,2]"), 2), "negative"},
      {FileOf(One("U8", "[2.0]", "[0,2]"), 2), "no 64-bit integer"},
      {FileOf(One("U8", "[\"2\"]", "[0,2]"), 2), "a string"},
      {FileOf(One("U8", "[[2]]", "[0,2]"), 2), "an array"},
      {FileOf(One("U8", "2", "[0,2]"), 2), "a number"},
      {FileOf(One("U8", "{}", "[0,2]"), 2), "an object"},
      {FileOf(One("U8", "null", "[0,2]"), 2), "null"},
      {FileOf(One("U8", "[true]", "[0,2]"), 2), "a boolean"},
      {FileOf(One("U8", "[2]", "[0,2,2]"), 2), "3 numbers"},
      {FileOf(One("U8", "[2]", "[0]"), 2), "1 numbers"},
      {FileOf(One("u8", "[2]", "[0,2]"), 2), "unknown dtype"},
      {FileOf(One("U8", absl::StrCat("[2", std::string(128, ',') + "1]"), "[0,2]"), 2), "no JSON"},
      {FileOf(R"({"a":{"dtype":["U8"],"shape":[2],"data_offsets":[0,2]}})", 2), "an array"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[2]}})", 2), "lacks"},
      {FileOf(R"({"a":{}})", 0), "lacks"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"dtype":"U8"}})", 0),
       "two dtype"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
       "unknown field"},
      {FileOf(R"({"a":"U8"})", 0), "a string"},
      {FileOf(R"({"a":[]})", 0), "an array"},
      {FileOf(R"({"__metadata__":{"a":1}})", 0), "a number"},
      {FileOf(R"({"__metadata__":{"a":{}}})", 0), "an object"},
      {FileOf(R"({"__metadata__":{"a":"1","a":"1"}})", 0), "two 'a'"},
      {FileOf(R"({"__metadata__":{},"__metadata__":{}})", 0), "two '__metadata__'"},
      {FileOf(R"({"__metadata__":null})", 0), "null"},
      {FileOf("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0), "no JSON"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
              R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
              0),
       "two tensors 'a'"},
  };
  for (const auto& [file, message] : cases) {
    EXPECT_THAT(ParseSafetensorsHeader(file),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)))
        << absl::CHexEscape(file);
  }
}

TEST(SafetensorsHeaderTest, RefusesMoreDimsThanAnyLibraryHas) {
  std::string shape = "[2";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_THAT(ParseSafetensorsHeader(FileOf(One("U8", shape + "]", "[0,2]"), 2)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("too long")));
}

TEST(SafetensorsHeaderTest, NothingCutOffIsAccepted) {
  const std::string file = FileOf(One("U8", "[2]", "[0,2]"), 2);
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParseSafetensorsHeader(file.substr(0, size)).ok()) << size;
  }
}

TEST(SafetensorsIndexTest, ReadsTheMapAndPassesOverTheRest) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":1.5e3,"weight_map":{"x":[null,true,-1]}},"weight_map":{"b":"model-00001-of-00002.safetensors","a":"y.safetensors"},"z":[{"weight_map":"q"}]})");
  ASSERT_THAT(index, IsOk());
  EXPECT_THAT(*index, ElementsAre(Pair("a", "y.safetensors"),
                                  Pair("b", "model-00001-of-00002.safetensors")));
}

TEST(SafetensorsIndexTest, RefusesHostileIndices) {
  auto map = [](const std::string& file) {
    return absl::StrCat(R"({"weight_map":{"a":")", file, R"("}})");
  };
  ASSERT_THAT(ParseSafetensorsIndex(map("x.safetensors")), IsOk());
  const std::vector<std::string> cases = {
      "",
      "[]",
      "{}",
      "\"weight_map\"",
      R"({"weight_map":[]})",
      R"({"weight_map":null})",
      R"({"weight_map":"x.safetensors"})",
      R"({"weight_map":{"a":1}})",
      R"({"weight_map":{"a":{}}})",
      R"({"weight_map":{"a":["x.safetensors"]}})",
      R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})",
      R"({"weight_map":{},"weight_map":{}})",
      R"({"weight_map":{})",
      R"({"weight_map":{}}})",
      map(""),
      map(".safetensors"),
      map("../x.safetensors"),
      map("/etc/x.safetensors"),
      map("a/x.safetensors"),
      map("x.bin"),
      map("x\\u0000.safetensors"),
      map(std::string(128, 'x') + ".safetensors"),
  };
  for (const std::string& text : cases) {
    EXPECT_THAT(ParseSafetensorsIndex(text), StatusIs(absl::StatusCode::kDataLoss)) << text;
  }
}

TEST(SafetensorsIndexTest, SharesTensorsOutInOrder) {
  auto tensor = [](const std::string& name, int64_t bytes) {
    SafetensorsTensor out{name, "U8", {bytes}};
    out.end = bytes;
    return out;
  };
  std::vector<std::string> plan;
  for (const auto& shard : PlanSafetensorsShards(
           {tensor("a", 3), tensor("b", 7), tensor("c", 20), tensor("d", 1), tensor("e", 9)}, 10)) {
    plan.emplace_back();
    for (const SafetensorsTensor& each : shard) plan.back() += each.name;
  }
  EXPECT_THAT(plan, ElementsAre("ab", "c", "de"));
  EXPECT_EQ(PlanSafetensorsShards({}, 10).size(), 1u);
  EXPECT_EQ(SafetensorsShardName(1, 12), "model-00002-of-00012.safetensors");
  EXPECT_EQ(SafetensorsShardName(0, 1), "model.safetensors");
}

class SafetensorsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), "safetensors_test");
    ASSERT_THAT(fs_.RemoveTree(directory_), IsOk());
    ASSERT_THAT(fs_.CreateDirs(directory_), IsOk());
  }

  // Bytes that tell where they belong.
  static std::string Contents(const SafetensorsTensor& tensor) {
    std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(tensor.name[0] + 7 * i);
    return bytes;
  }

  static absl::Status Fill(const SafetensorsTensor& tensor, std::string* bytes) {
    *bytes = Contents(tensor);
    return absl::OkStatus();
  }

  void ExpectSame(const SafetensorsModel& model) {
    EXPECT_EQ(model.Names().size(), tensors_.size());
    for (const SafetensorsTensor& tensor : tensors_) {
      const SafetensorsTensor* const found = model.Find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->dtype, tensor.dtype);
      EXPECT_EQ(found->shape, tensor.shape);
      EXPECT_EQ(model.Bytes(*found), Contents(*found));
    }
    EXPECT_EQ(model.Find("absent"), nullptr);
  }

  FileSystem& fs_ = PosixFileSystem();
  std::string directory_;
  const std::vector<SafetensorsTensor> tensors_ = {
      {"word", "F32", {4, 3}}, {"a", "BF16", {5}}, {"b\n\"ü", "U8", {}}, {"c", "I64", {2}},
      {"d", "F16", {0, 3}},    {"e", "U16", {3}},  {"f", "I32", {1, 1}}, {"g", "F64", {2}},
  };
};

TEST_F(SafetensorsFilesTest, ReadsBackWhatItWrote) {
  ASSERT_THAT(WriteSafetensorsModel(fs_, directory_, tensors_, {}, Fill), IsOk());
  EXPECT_THAT(*fs_.List(directory_), ElementsAre("model.safetensors"));
  const auto model = SafetensorsModel::Open(directory_);
  ASSERT_THAT(model, IsOk());
  ExpectSame(*model);
  const auto file = SafetensorsFile::Open(JoinPath(directory_, "model.safetensors"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->header().metadata, ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(file->header().data_begin % 8, 0);
}

TEST_F(SafetensorsFilesTest, ReadsBackSeveralFiles) {
  SafetensorsModelOptions options;
  options.max_file_bytes = 60;
  ASSERT_THAT(WriteSafetensorsModel(fs_, directory_, tensors_, options, Fill), IsOk());
  EXPECT_THAT(*fs_.List(directory_),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  const auto model = SafetensorsModel::Open(directory_);
  ASSERT_THAT(model, IsOk());
  ExpectSame(*model);
  EXPECT_THAT(*ReadFileToString(fs_, JoinPath(directory_, kSafetensorsIndexFileName)),
              HasSubstr("\"total_size\": 101"));
}

TEST_F(SafetensorsFilesTest, RefusesFilesThatDisagreeWithTheIndex) {
  SafetensorsModelOptions options;
  options.max_file_bytes = 60;
  ASSERT_THAT(WriteSafetensorsModel(fs_, directory_, tensors_, options, Fill), IsOk());
  const std::string path = JoinPath(directory_, kSafetensorsIndexFileName);
  const std::string text = *ReadFileToString(fs_, path);
  auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_THAT(WriteFileAtomically(fs_, path, changed), IsOk());
    return SafetensorsModel::Open(directory_).status();
  };
  EXPECT_THAT(replaced("\"word\"", "\"other\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'word'")));
  EXPECT_THAT(replaced("{\n    \"a\"", "{\"new\": \"model-00001-of-00002.safetensors\", \"a\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("lacks 'new'")));
  EXPECT_THAT(replaced("{\n    \"a\"", "{\"new\": \"missing.safetensors\", \"a\""),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing.safetensors")));
  EXPECT_THAT(replaced("weight_map", "weight_mop"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

TEST_F(SafetensorsFilesTest, SaysWhyOtherFormatsAreNotRead) {
  ASSERT_THAT(WriteFileAtomically(fs_, JoinPath(directory_, "pytorch_model.bin"), "x"), IsOk());
  EXPECT_THAT(SafetensorsModel::Open(directory_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("execute code")));
}

TEST_F(SafetensorsFilesTest, RefusesNamesThatCannotBeWritten) {
  auto write = [&](const std::vector<SafetensorsTensor>& tensors) {
    return WriteSafetensorsModel(fs_, directory_, tensors, {}, Fill);
  };
  EXPECT_THAT(write({{"a", "U8", {1}}, {"a", "U8", {2}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two tensors 'a'")));
  EXPECT_THAT(write({{"\xff", "U8", {1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  EXPECT_THAT(write({{"__metadata__", "U8", {1}}}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(write({{"a", "U8", {int64_t{1} << 62}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too large")));
}

TEST(SafetensorsWriterTest, LeavesTheOldFileOrTheWholeNewOneAfterAnyFailure) {
  const SafetensorsHeader header{{}, {{"a", "U8", {100}}, {"b", "U8", {100}}}};
  auto fill = [](const SafetensorsTensor& tensor, std::string* bytes) {
    bytes->assign(static_cast<size_t>(tensor.bytes()), 'n');
    return absl::OkStatus();
  };
  for (int operation = 0;; ++operation) {
    MemoryFileSystem memory;
    ASSERT_THAT(memory.CreateDirs("/m"), IsOk());
    ASSERT_THAT(WriteFileAtomically(memory, "/m/x", "old"), IsOk());
    FaultFileSystem faulty(&memory);
    faulty.FailAt(operation, ENOSPC, /*lasting=*/true);
    const absl::Status status = WriteSafetensorsFile(faulty, "/m/x", header, fill);
    const std::string contents = *ReadFileToString(memory, "/m/x");
    EXPECT_TRUE(contents == "old" || ParseSafetensorsHeader(contents).ok());
    EXPECT_THAT(*memory.List("/m"), ElementsAre("x"));
    EXPECT_EQ(status.ok(), !faulty.has_failed());
    if (status.ok()) {
      EXPECT_NE(contents, "old");
      EXPECT_GT(operation, 5);
      break;
    }
  }
}

}  // namespace
}  // namespace megatron
