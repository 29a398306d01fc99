#include "megatron/data/blend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A source whose samples tell their dataset and number.
class Marked : public SampleSource {
 public:
  Marked(int32_t mark, int64_t size) : mark_(mark), size_(size) {}
  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    sample->tokens = {mark_, static_cast<int32_t>(index)};
    return absl::OkStatus();
  }

 private:
  int32_t mark_;
  int64_t size_;
};

std::vector<std::unique_ptr<SampleSource>> Datasets(const std::vector<int64_t>& sizes) {
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (const int64_t size : sizes) {
    datasets.push_back(std::make_unique<Marked>(static_cast<int32_t>(datasets.size()), size));
  }
  return datasets;
}

TEST(BlendIndexTest, DatasetsAlternateAsInMegatron) {
  const BlendIndex index = BuildBlendIndex({0.3, 0.7}, 12);
  EXPECT_THAT(index.dataset, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1));
  EXPECT_THAT(index.sample, ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 3, 7));
  EXPECT_THAT(BuildBlendIndex({0.25, 0.25, 0.5}, 12).dataset,
              ElementsAre(2, 0, 1, 2, 0, 2, 1, 2, 0, 2, 1, 2));
}

// Weights that are normalized once take sample 6 from the first dataset.
TEST(BlendIndexTest, WeightsAreNormalizedTwiceAsInMegatron) {
  const absl::StatusOr<BlendSpec> spec = ParseBlend({"0.7", "a", "0.2", "b", "0.1", "c"});
  ASSERT_THAT(spec, IsOk());
  EXPECT_THAT(BuildBlendIndex(OrderWeights(spec->weights), 12).dataset,
              ElementsAre(0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1));
}

// The sum of ten times 0.1 is 1 in numpy; added one after the other, they are less.
TEST(ParseBlendTest, WeightsAreSummedAsInNumpy) {
  std::vector<std::string> entries;
  for (int i = 0; i < 10; ++i) entries.insert(entries.end(), {"0.1", absl::StrCat("part", i)});
  const absl::StatusOr<BlendSpec> spec = ParseBlend(entries);
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(BlendSize(spec->weights, 1000), 1000);
}

TEST(ParseBlendTest, WeightsPrecedeTheirPrefixes) {
  const absl::StatusOr<BlendSpec> spec = ParseBlend({"3", "a", "7", "b"});
  ASSERT_THAT(spec, IsOk());
  EXPECT_THAT(spec->prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(spec->weights, ElementsAre(DoubleEq(0.3), DoubleEq(0.7)));
}

TEST(ParseBlendTest, PrefixesAloneHaveNoWeights) {
  for (const std::vector<std::string>& entries :
       {std::vector<std::string>{"a"}, {"a", "b"}, {"a", "b", "c"}, {"1", "b", "c"}}) {
    const absl::StatusOr<BlendSpec> spec = ParseBlend(entries);
    ASSERT_THAT(spec, IsOk());
    EXPECT_EQ(spec->prefixes, entries);
    EXPECT_THAT(spec->weights, IsEmpty());
  }
}

TEST(ParseBlendTest, MixturesAndImpossibleWeightsAreRefused) {
  for (const std::vector<std::string>& entries : {std::vector<std::string>{},
                                                  {"1", "a", "b", "c"},
                                                  {"-1", "a"},
                                                  {"0", "a", "0", "b"},
                                                  {"nan", "a"},
                                                  {"inf", "a"}}) {
    EXPECT_THAT(ParseBlend(entries), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(BlendedDatasetTest, SamplesPerDatasetAreAsInMegatron) {
  EXPECT_THAT(SamplesPerDataset({0.3, 0.7}, 1000), ElementsAre(302, 704));
  EXPECT_EQ(BlendSize({0.3, 0.7}, 12), 4 + 9);
}

TEST(BlendedDatasetTest, SamplesComeFromTheDatasetsOfTheIndex) {
  auto blend = BlendedDataset::Create(Datasets({5, 9}), {0.3, 0.7}, 13);
  ASSERT_THAT(blend, IsOk());
  EXPECT_EQ((*blend)->size(), 13);
  Sample sample;
  ASSERT_THAT((*blend)->Get(11, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 7));
}

TEST(BlendedDatasetTest, ASampleThatDoesNotExistIsAnError) {
  auto blend = BlendedDataset::Create(Datasets({5, 9}), {0.3, 0.7}, 8);
  ASSERT_THAT(blend, IsOk());
  Sample sample;
  EXPECT_THAT((*blend)->Get(7, &sample), IsOk());
  for (const int64_t index : {int64_t{-1}, int64_t{8}, INT64_MAX}) {
    EXPECT_THAT((*blend)->Get(index, &sample),
                StatusIs(absl::StatusCode::kOutOfRange,
                         AllOf(HasSubstr(absl::StrCat("sample ", index, " ")),
                               HasSubstr("blend has 8 samples"))));
  }
}

class BlendCacheTest : public ::testing::Test {
 protected:
  // Returns all samples of the blend; each tells the dataset that it comes from.
  std::vector<std::vector<int32_t>> Samples(const std::vector<double>& weights,
                                            const BlendCache& cache) {
    const std::vector<int64_t> sizes(weights.size(), 12);
    const auto blend = BlendedDataset::Create(Datasets(sizes), weights, 12, cache);
    EXPECT_THAT(blend, IsOk());
    std::vector<std::vector<int32_t>> samples;
    Sample sample;
    for (int64_t i = 0; i < (*blend)->size(); ++i) {
      EXPECT_THAT((*blend)->Get(i, &sample), IsOk());
      samples.push_back(sample.tokens);
    }
    return samples;
  }

  const std::string directory_ = absl::StrCat(
      ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const IndexCache cache_{PosixFileSystem(), directory_};
};

TEST_F(BlendCacheTest, ALoadedIndexEqualsTheBuiltOne) {
  for (const std::vector<double>& weights : {std::vector<double>{0.3, 0.7}, {0.25, 0, 0.75}}) {
    const auto built = Samples(weights, {});
    EXPECT_EQ(Samples(weights, {&cache_, Split::kTrain}), built);
    EXPECT_EQ(Samples(weights, {&cache_, Split::kTrain}), built);
  }
  // Each entry has two arrays, a description and checksums; one more file is the lock.
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 2u * 4 + 1);
  Samples({0.3, 0.7}, {&cache_, Split::kValid});
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 3u * 4 + 1);
}

// The checksums of the stored index are right, but it names a dataset that does not exist.
TEST_F(BlendCacheTest, AnIndexWithAnInvalidDatasetIsBuiltAgain) {
  const auto built = Samples({0.25, 0, 0.75}, {&cache_, Split::kTrain});
  std::string digest;
  const auto names = PosixFileSystem().List(directory_);
  ASSERT_THAT(names, IsOk());
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, "description.txt")) digest = name;
  }
  const auto description = ReadFileToString(PosixFileSystem(), JoinPath(directory_, digest));
  ASSERT_THAT(description, IsOk());
  const IndexCacheKey key = {
      "BlendedDataset-train", *description, {"dataset_index", "dataset_sample_index"}};
  for (const int16_t bad : {int16_t{3}, int16_t{-1}, int16_t{INT16_MIN}}) {
    const std::vector<int16_t> datasets(12, bad);
    const std::vector<int64_t> samples(12, 0);
    ASSERT_THAT(cache_.Store(key, {{{"<i2", {12}, ArrayBytes(absl::MakeConstSpan(datasets))},
                                    {"<i8", {12}, ArrayBytes(absl::MakeConstSpan(samples))}},
                                   nullptr}),
                IsOk());
    EXPECT_EQ(Samples({0.25, 0, 0.75}, {&cache_, Split::kTrain}), built);
  }
}

TEST(BlendedDatasetTest, TheErrorNamesADatasetThatIsTooSmall) {
  EXPECT_THAT(BlendedDataset::Create(Datasets({5, 2}), {0.3, 0.7}, 12),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dataset 2")));
}

}  // namespace
}  // namespace megatron
