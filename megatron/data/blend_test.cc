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

// Samples that say where they come from.
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

TEST(BlendIndexTest, IsMegatrons) {
  const BlendIndex index = BuildBlendIndex({0.3, 0.7}, 12);
  EXPECT_THAT(index.dataset, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1));
  EXPECT_THAT(index.sample, ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 3, 7));
  EXPECT_THAT(BuildBlendIndex({0.25, 0.25, 0.5}, 12).dataset,
              ElementsAre(2, 0, 1, 2, 0, 2, 1, 2, 0, 2, 1, 2));
}

TEST(BlendIndexTest, ExhaustiveTakesEverySampleOnceInOrder) {
  const BlendIndex index = BuildExhaustiveBlendIndex({3, 0, 1, 7});
  std::vector<std::vector<int64_t>> taken(4);
  for (size_t i = 0; i < index.dataset.size(); ++i)
    taken[index.dataset[i]].push_back(index.sample[i]);
  EXPECT_THAT(taken, ElementsAre(ElementsAre(0, 1, 2), IsEmpty(), ElementsAre(0),
                                 ElementsAre(0, 1, 2, 3, 4, 5, 6)));
  EXPECT_EQ(index.dataset[0], 3);
}

TEST(ParseBlendTest, WeightsStandBeforeTheirPrefixes) {
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

TEST(BlendedDatasetTest, SamplesPerDatasetIsMegatronsRequest) {
  EXPECT_THAT(SamplesPerDataset({0.3, 0.7}, 1000), ElementsAre(302, 704));
}

TEST(BlendedDatasetTest, GetsTheSamplesOfItsIndex) {
  auto blend = BlendedDataset::Create(Datasets({5, 9}), {0.3, 0.7}, 12);
  ASSERT_THAT(blend, IsOk());
  EXPECT_EQ((*blend)->size(), 4 + 9);
  Sample sample;
  ASSERT_THAT((*blend)->Get(11, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 7));
}

TEST(BlendedDatasetTest, ASampleThatDoesNotExistIsAnError) {
  auto blend = BlendedDataset::CreateExhaustive(Datasets({5, 2}));
  ASSERT_THAT(blend, IsOk());
  Sample sample;
  EXPECT_THAT((*blend)->Get(6, &sample), IsOk());
  for (const int64_t index : {int64_t{-1}, int64_t{7}, INT64_MAX}) {
    EXPECT_THAT((*blend)->Get(index, &sample),
                StatusIs(absl::StatusCode::kOutOfRange,
                         AllOf(HasSubstr(absl::StrCat("sample ", index, " ")),
                               HasSubstr("blend has 7 samples"))));
  }
}

class BlendCacheTest : public ::testing::Test {
 protected:
  // Where the samples of the blend come from.
  std::vector<std::vector<int32_t>> Places(const std::vector<int64_t>& sizes,
                                           const BlendCache& cache) {
    const auto blend = sizes.size() == 2
                           ? BlendedDataset::Create(Datasets(sizes), {0.3, 0.7}, 12, cache)
                           : BlendedDataset::CreateExhaustive(Datasets(sizes), cache);
    EXPECT_THAT(blend, IsOk());
    std::vector<std::vector<int32_t>> places;
    Sample sample;
    for (int64_t i = 0; i < (*blend)->size(); ++i) {
      EXPECT_THAT((*blend)->Get(i, &sample), IsOk());
      places.push_back(sample.tokens);
    }
    return places;
  }

  const std::string directory_ = absl::StrCat(
      ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const IndexCache cache_{PosixFileSystem(), directory_};
};

TEST_F(BlendCacheTest, WhatIsLoadedIsWhatWasBuilt) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 10}, {3, 0, 8}}) {
    const auto built = Places(sizes, {});
    EXPECT_EQ(Places(sizes, {&cache_, Split::kTrain}), built);
    EXPECT_EQ(Places(sizes, {&cache_, Split::kTrain}), built);
  }
  // Two arrays, description and checksums of each, and the lock.
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 2u * 4 + 1);
  Places({5, 10}, {&cache_, Split::kValid});
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 3u * 4 + 1);
}

// A file with checksums that hold, but a dataset that is not there.
TEST_F(BlendCacheTest, AnIndexThatNamesNoDatasetIsBuiltAgain) {
  const auto built = Places({3, 0, 8}, {&cache_, Split::kTrain});
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
    const std::vector<int16_t> datasets(11, bad);
    const std::vector<int64_t> samples(11, 0);
    ASSERT_THAT(cache_.Store(key, {{{"<i2", {11}, ArrayBytes(absl::MakeConstSpan(datasets))},
                                    {"<i8", {11}, ArrayBytes(absl::MakeConstSpan(samples))}},
                                   nullptr}),
                IsOk());
    EXPECT_EQ(Places({3, 0, 8}, {&cache_, Split::kTrain}), built);
  }
}

TEST(BlendedDatasetTest, ADatasetThatIsTooSmallIsNamed) {
  EXPECT_THAT(BlendedDataset::Create(Datasets({5, 2}), {0.3, 0.7}, 12),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dataset 2")));
}

TEST(BlendedDatasetTest, ExhaustiveHasAllSamples) {
  auto blend = BlendedDataset::CreateExhaustive(Datasets({5, 2}));
  ASSERT_THAT(blend, IsOk());
  EXPECT_EQ((*blend)->size(), 7);
}

}  // namespace
}  // namespace megatron
