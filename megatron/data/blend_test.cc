#include "megatron/data/blend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
class Marked : public GptSampleSource {
 public:
  Marked(int32_t mark, int64_t size) : mark_(mark), size_(size) {}
  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, GptSample* sample) const override {
    sample->tokens = {mark_, static_cast<int32_t>(index)};
    return absl::OkStatus();
  }

 private:
  int32_t mark_;
  int64_t size_;
};

std::vector<std::unique_ptr<GptSampleSource>> Datasets(const std::vector<int64_t>& sizes) {
  std::vector<std::unique_ptr<GptSampleSource>> datasets;
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
  GptSample sample;
  ASSERT_THAT((*blend)->Get(11, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 7));
}

TEST(BlendedDatasetTest, ASampleThatDoesNotExistIsAnError) {
  auto blend = BlendedDataset::CreateExhaustive(Datasets({5, 2}));
  ASSERT_THAT(blend, IsOk());
  GptSample sample;
  EXPECT_THAT((*blend)->Get(6, &sample), IsOk());
  for (const int64_t index : {int64_t{-1}, int64_t{7}, INT64_MAX}) {
    EXPECT_THAT((*blend)->Get(index, &sample),
                StatusIs(absl::StatusCode::kOutOfRange,
                         AllOf(HasSubstr(absl::StrCat("sample ", index, " ")),
                               HasSubstr("blend has 7 samples"))));
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
