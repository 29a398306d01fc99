#include "tools/torch_checkpoint/torch_file.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = PickleValue::Kind;

constexpr char kObjects[] = "tools/torch_checkpoint/testdata/objects.pt";

// A file that tools/interop/megatron_checkpoints/make_testdata.py wrote with torch.save.
std::string Objects() { return ReadFileToString(PosixFileSystem(), kObjects, 1 << 20).value(); }

std::vector<float> Values(const TorchTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  CopyElements(tensor, 0, tensor.numel(), Tensor(values.data(), DType::kFloat32, {tensor.numel()}),
               0);
  return values;
}

TEST(TorchFileTest, ReadsTensorsOfEachKind) {
  const std::string bytes = Objects();
  const auto file = TorchFile::Parse(bytes);
  ASSERT_THAT(file, IsOk());
  const auto half = file->TensorOf(*file->root().Get("half"));
  ASSERT_THAT(half, IsOk());
  EXPECT_EQ(half->dtype, DType::kFloat16);
  EXPECT_THAT(half->shape, ElementsAre(3));
  EXPECT_THAT(Values(*half), ElementsAre(0, 1, 2));
  // A view of a larger storage begins behind its beginning.
  const auto view = file->TensorOf(*file->root().Get("view"));
  ASSERT_THAT(view, IsOk());
  EXPECT_THAT(view->shape, ElementsAre(2, 6));
  EXPECT_THAT(Values(*view), ElementsAre(6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17));
  const auto parameter = file->TensorOf(*file->root().Get("parameter"));
  ASSERT_THAT(parameter, IsOk());
  EXPECT_THAT(Values(*parameter), ElementsAre(0, 1));
  EXPECT_THAT(file->TensorOf(*file->root().Get("transposed")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not contiguous")));
  EXPECT_THAT(file->TensorOf(*file->root().Get("number")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another object")));
}

TEST(TorchFileTest, ReadsWhatIsNoTensor) {
  const std::string bytes = Objects();
  const auto file = TorchFile::Parse(bytes);
  ASSERT_THAT(file, IsOk());
  const PickleValue& root = file->root();
  EXPECT_EQ(root.Get("number")->integer, 3);
  EXPECT_EQ(root.Get("negative")->integer, -300);
  EXPECT_TRUE(root.Get("large")->is(Kind::kBytes));
  EXPECT_EQ(root.Get("text")->text, "täxt");
  EXPECT_EQ(root.Get("list")->items.size(), 4u);
}

TEST(TorchFileTest, CopiesPartsAndRounds) {
  const std::string bytes = Objects();
  const auto file = TorchFile::Parse(bytes);
  ASSERT_THAT(file, IsOk());
  const auto view = file->TensorOf(*file->root().Get("view"));
  ASSERT_THAT(view, IsOk());
  std::vector<BFloat16> values(4, ToBFloat16(-1));
  CopyElements(*view, 3, 2, Tensor(values.data(), DType::kBFloat16, {4}), 1);
  EXPECT_EQ(ToFloat(values[0]), -1);
  EXPECT_EQ(ToFloat(values[1]), 9);
  EXPECT_EQ(ToFloat(values[2]), 10);
  EXPECT_EQ(ToFloat(values[3]), -1);
}

// No byte that is changed or missing makes the program end or read elsewhere.
TEST(TorchFileTest, DamageIsRefusedOrReadsAsOtherValues) {
  const std::string whole = Objects();
  for (size_t size = 0; size < whole.size(); size += 7)
    EXPECT_FALSE(TorchFile::Parse(absl::string_view(whole).substr(0, size)).ok()) << size;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
    const auto file = TorchFile::Parse(damaged);
    if (!file.ok()) continue;
    for (const auto& [key, value] : file->root().entries) {
      const auto tensor = file->TensorOf(*value);
      if (tensor.ok()) Values(*tensor);
    }
  }
}

}  // namespace
}  // namespace megatron
