#include "tools/torch_checkpoint/dcp_weights.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A checkpoint that tools/interop/megatron_checkpoints/make_testdata.py wrote with PyTorch.
constexpr char kCheckpoint[] = "tools/torch_checkpoint/testdata/dcp";

std::string FileOf(const std::string& name) {
  return ReadFileToString(PosixFileSystem(), JoinPath(kCheckpoint, name), 1 << 20).value();
}

std::vector<float> Read(const DcpWeights& weights, const std::string& name, int64_t index,
                        int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  EXPECT_THAT(weights.Read(name, index, Tensor(values.data(), DType::kFloat32, {count})), IsOk());
  return values;
}

TEST(DcpWeightsTest, ReadsTensorsThatAreCutAndOnesThatAreWhole) {
  const auto weights = DcpWeights::Open(kCheckpoint);
  ASSERT_THAT(weights, IsOk());
  // Whole numbers, and what is no tensor, are no weights.
  EXPECT_THAT((*weights)->Names(),
              ElementsAre("decoder.layers.mlp.weight", "decoder.layers.norm.weight", "whole"));
  EXPECT_THAT(*(*weights)->ShapeOf("decoder.layers.norm.weight"), ElementsAre(4, 6));
  EXPECT_EQ((*weights)->ShapeOf("other"), nullptr);
  std::vector<float> counted(24);
  for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<float>(i);
  EXPECT_EQ(Read(**weights, "decoder.layers.norm.weight", -1, 24), counted);
  EXPECT_EQ(Read(**weights, "decoder.layers.mlp.weight", -1, 24), counted);
  EXPECT_THAT(Read(**weights, "whole", -1, 5), ElementsAre(0, 0.125f, 0.25f, 0.375f, 0.5f));
  // Where the result has more elements, the others stay.
  EXPECT_THAT(Read(**weights, "whole", -1, 7), ElementsAre(0, 0.125f, 0.25f, 0.375f, 0.5f, 0, 0));
}

TEST(DcpWeightsTest, ReadsOneIndexOfTheFirstDim) {
  const auto weights = DcpWeights::Open(kCheckpoint);
  ASSERT_THAT(weights, IsOk());
  EXPECT_THAT(Read(**weights, "decoder.layers.norm.weight", 3, 6),
              ElementsAre(18, 19, 20, 21, 22, 23));
  EXPECT_THAT(Read(**weights, "decoder.layers.mlp.weight", 1, 12),
              ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_THAT(Read(**weights, "whole", 4, 1), ElementsAre(0.5f));
}

TEST(DcpWeightsTest, RefusesPlacesOutsideTheDirectory) {
  const std::string metadata = FileOf(".metadata");
  EXPECT_THAT(ParseDcpMetadata(metadata), IsOk());
  EXPECT_THAT(ParseDcpMetadata(absl::StrReplaceAll(metadata, {{"__0_0.distcp", "../_0.distcp"}})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("outside the directory")));
  EXPECT_THAT(ParseDcpMetadata(absl::StrReplaceAll(metadata, {{"storage_data", "storage_dat_"}})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("storage_data is missing")));
}

TEST(DcpWeightsTest, RefusesFilesThatDoNotHoldTheParts) {
  const std::string directory = JoinPath(testing::TempDir(), "dcp");
  FileSystem& fs = PosixFileSystem();
  ASSERT_THAT(fs.CreateDirs(directory), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs, JoinPath(directory, ".metadata"), FileOf(".metadata")),
              IsOk());
  EXPECT_THAT(DcpWeights::Open(directory).status(), StatusIs(absl::StatusCode::kNotFound));
  for (const char* name : {"__0_0.distcp", "__0_1.distcp"}) {
    const std::string whole = FileOf(name);
    ASSERT_THAT(WriteFileAtomically(fs, JoinPath(directory, name),
                                    absl::string_view(whole).substr(0, whole.size() / 2)),
                IsOk());
  }
  const auto weights = DcpWeights::Open(directory);
  ASSERT_THAT(weights, IsOk());
  std::vector<float> values(24);
  int failed = 0;
  for (const std::string& name : (*weights)->Names()) {
    const absl::Status status =
        (*weights)->Read(name, -1, Tensor(values.data(), DType::kFloat32, {24}));
    if (status.ok()) continue;
    ++failed;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("shorter")));
  }
  EXPECT_GE(failed, 2);
}

// A tensor whose elements count up.
TestTensor Counting(const std::vector<int64_t>& shape) {
  TestTensor tensor = {shape, {}};
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(static_cast<float>(i));
  return tensor;
}

// Megatron's distributed optimizer keeps a state as pieces of its flattened blocks.
TEST(DcpWeightsTest, ReadsBlocksThatWereFlattened) {
  const std::string directory = JoinPath(testing::TempDir(), "flattened");
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
  DcpWriter writer;
  writer.AddFlattened("of_layers", Counting({3, 4, 6}), {3, 2, 1}, 3);
  writer.AddFlattened("by_columns", Counting({4, 6}), {1, 3}, 2);
  writer.AddFlattened("cube", Counting({2, 4, 6}), {1, 2, 2}, 5);
  writer.AddFlattened("vector", Counting({10}), {2}, 3);
  writer.Write(directory);
  const auto weights = DcpWeights::Open(directory);
  ASSERT_THAT(weights, IsOk());
  for (const auto& [name, shape] :
       std::map<std::string, std::vector<int64_t>>{{"of_layers", {3, 4, 6}},
                                                   {"by_columns", {4, 6}},
                                                   {"cube", {2, 4, 6}},
                                                   {"vector", {10}}}) {
    ASSERT_NE((*weights)->ShapeOf(name), nullptr);
    EXPECT_EQ(*(*weights)->ShapeOf(name), shape);
    const std::vector<float> all = Counting(shape).values;
    const auto count = static_cast<int64_t>(all.size());
    EXPECT_EQ(Read(**weights, name, -1, count), all) << name;
    const int64_t part = count / shape[0];
    for (int64_t i = 0; i < shape[0]; ++i) {
      EXPECT_EQ(Read(**weights, name, i, part),
                std::vector<float>(all.begin() + i * part, all.begin() + (i + 1) * part))
          << name << " " << i;
    }
  }
}

// The buckets of Megatron's distributed optimizer are vectors in parts of any size.
TEST(DcpWeightsTest, ReadsElementsOfAVectorInParts) {
  const std::string directory = JoinPath(testing::TempDir(), "pieces");
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
  DcpWriter writer;
  writer.AddPiece("v", 9, 5, {5, 6, 7});
  writer.AddPiece("v", 9, 0, {0, 1, 2, 3, 4});
  writer.AddPiece("v", 9, 8, {8});
  writer.AddPiece("hole", 9, 0, {0, 1, 2});
  writer.AddPiece("hole", 9, 4, {4, 5, 6, 7, 8});
  writer.AddPiece("overlap", 9, 0, {0, 1, 2, 3, 4, 5});
  writer.AddPiece("overlap", 9, 5, {5, 6, 7, 8});
  writer.AddFlattened("flat", Counting({8}), {2}, 2);
  writer.Write(directory);
  const auto weights = DcpWeights::Open(directory);
  ASSERT_THAT(weights, IsOk());
  std::vector<float> values;
  const auto read = [&](const char* name, int64_t begin, int64_t count) {
    values.assign(static_cast<size_t>(count), -1);
    return (*weights)->ReadElements(name, begin, Tensor(values.data(), DType::kFloat32, {count}));
  };
  for (int64_t begin = 0; begin < 9; ++begin) {
    for (int64_t count = 1; begin + count <= 9; ++count) {
      ASSERT_THAT(read("v", begin, count), IsOk());
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(begin + i));
    }
  }
  const auto broken = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("overlap or leave holes"));
  EXPECT_THAT(read("hole", 4, 5), IsOk());
  EXPECT_THAT(read("hole", 1, 5), broken);
  EXPECT_THAT(read("hole", 3, 2), broken);
  EXPECT_THAT(read("hole", 2, 2), broken);
  EXPECT_THAT(read("overlap", 0, 5), IsOk());
  EXPECT_THAT(read("overlap", 0, 6), broken);
  EXPECT_THAT(read("overlap", 5, 2), broken);
  EXPECT_THAT(read("flat", 0, 8), broken);
}

TEST(DcpWeightsTest, ReadsWhatIsNoTensor) {
  const std::string directory = JoinPath(testing::TempDir(), "objects");
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
  TorchFileWriter object;
  object.pickle().BeginList().Int(7).EndList();
  DcpWriter writer;
  writer.Add("w", Counting({2, 3}), {1, 1});
  writer.AddObject("optimizer/shard_0_1", object.Finish());
  writer.Write(directory);
  auto weights = DcpWeights::Open(directory);
  ASSERT_THAT(weights, IsOk());
  EXPECT_THAT((*weights)->Names(), ElementsAre("w"));
  EXPECT_THAT((*weights)->ObjectNames(), ElementsAre("optimizer/shard_0_1"));
  const auto bytes = (*weights)->ReadObject("optimizer/shard_0_1");
  ASSERT_THAT(bytes, IsOk());
  EXPECT_EQ(*bytes, object.Finish());
  // A file that ends in front of it.
  const std::string file = JoinPath(directory, "__0_0.distcp");
  const std::string whole = ReadFileToString(PosixFileSystem(), file, 1 << 20).value();
  std::ofstream(file, std::ios::binary) << whole.substr(0, whole.size() - 1);
  weights = DcpWeights::Open(directory);
  ASSERT_THAT(weights, IsOk());
  EXPECT_THAT((*weights)->ReadObject("optimizer/shard_0_1").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("shorter")));
}

// No byte that is changed makes the program end or read elsewhere.
TEST(DcpWeightsTest, DamagedBlocksAreRefusedOrReadAsOtherValues) {
  const std::string directory = JoinPath(testing::TempDir(), "damaged_blocks");
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
  DcpWriter writer;
  writer.AddFlattened("w", Counting({2, 4, 3}), {2, 2, 1}, 2);
  writer.Write(directory);
  const std::string path = JoinPath(directory, ".metadata"), whole = writer.Metadata();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0x01 : 0x06));
    std::ofstream(path, std::ios::binary) << damaged;
    const auto weights = DcpWeights::Open(directory);
    if (!weights.ok()) continue;
    const std::vector<int64_t>* const shape = (*weights)->ShapeOf("w");
    if (shape == nullptr) continue;
    int64_t count = 1;
    for (const int64_t size : *shape) count *= size;
    if (count > 4096) continue;
    std::vector<float> values(static_cast<size_t>(count));
    const Tensor out(values.data(), DType::kFloat32, {count});
    (*weights)->Read("w", -1, out).IgnoreError();
    for (int64_t i = 0; !shape->empty() && i < std::min<int64_t>((*shape)[0], 8); ++i)
      (*weights)->Read("w", i, out).IgnoreError();
  }
}

TEST(DcpWeightsTest, RefusesBlocksThatDoNotDivideTheTensor) {
  DcpWriter writer;
  writer.AddFlattened("w", Counting({2, 4, 3}), {2, 2, 1}, 2);
  std::string metadata = writer.Metadata();
  const std::string shape = PickleWriter().BeginTuple().Int(2).Int(4).Int(3).Finish().substr(2, 31);
  const std::string other = PickleWriter().BeginTuple().Int(2).Int(4).Int(6).Finish().substr(2, 31);
  ASSERT_EQ(shape.size(), other.size());
  const size_t at = metadata.rfind(shape);
  ASSERT_NE(at, std::string::npos);
  metadata.replace(at, other.size(), other);
  EXPECT_THAT(ParseDcpMetadata(metadata).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("flattened in another way")));
}

// No byte that is changed makes the program end.
TEST(DcpWeightsTest, DamagedMetadataIsRefusedOrSaysSomethingElse) {
  const std::string whole = FileOf(".metadata");
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {0x01, 0x40, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      const auto metadata = ParseDcpMetadata(damaged);
      if (!metadata.ok()) continue;
      for (const auto& [name, tensor] : metadata->tensors) {
        for (const DcpChunk& chunk : tensor.chunks) {
          for (size_t d = 0; d < tensor.shape.size(); ++d)
            EXPECT_LE(chunk.offset[d] + chunk.size[d], tensor.shape[d]) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
