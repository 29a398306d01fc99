// The tests of kernels_test.cc for the ops of mixtures of experts.
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/host_choices.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/moe/sinkhorn.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32;
using At = absl::Span<const Tensor>;

class MoeCudaOpTest : public AgreementTest, public ::testing::WithParamInterface<DType> {
 protected:
  // An operand that an op writes without reading it.
  static HostTensor Poisoned(const Shape& shape) {
    HostTensor x(shape, GetParam());
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, std::numeric_limits<double>::quiet_NaN());
    return x;
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, MoeCudaOpTest,
                         ::testing::Values(kF32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// Two different experts of four for each token, and here and there a dropped choice.
HostTensor Choices(int64_t tokens) {
  std::vector<double> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    chosen.push_back(static_cast<double>(t * t % 4));
    chosen.push_back(t % 7 == 3 ? -1 : static_cast<double>((t * t + 1 + t % 3) % 4));
  }
  return HostTensor::Of({tokens, 2}, DType::kInt32, chosen);
}

TEST_F(AgreementTest, RoutersChooseTheSameExpertsAndGiveTheSameGradients) {
  for (int model = 0; model < 5; ++model) {
    Router router;
    router.topk = 4;
    router.score = model < 2 || model == 4 ? RouterScore::kSoftmax : RouterScore::kSigmoid;
    router.pre_softmax = model == 1 || model == 4;
    if (model >= 3) {
      router.num_groups = 4;
      router.group_topk = 2;
      if (model == 4) router.group_score_topk = 1;
    }
    const int64_t tokens = 300, experts = 16;
    HostTensor logits = HostTensor::Normal({tokens, experts}, kF32, 1),
               bias = HostTensor::Normal({experts}, kF32, 2), expert({tokens, 4}, DType::kInt32),
               probability({tokens, 4}, kF32),
               dprobability = HostTensor::Normal({tokens, 4}, kF32, 3),
               counts({4, experts}, DType::kInt64), dlogits({tokens, experts}, kF32),
               values({tokens, 2}, kF32), sums({2}, kF32), number({tokens}, DType::kInt32),
               share = HostTensor::Of({4}, kF32, {0.01, 0.02, 0.005, 0.04});
    for (int64_t t = 0; t < tokens; ++t) number.Set(t, static_cast<double>(t * 7 % 5 - 1));
    const bool numbered = model % 2 == 1;
    ExpectAgreement({&logits, &bias, &expert, &probability, &dprobability, &counts, &dlogits,
                     &values, &sums, &number, &share},
                    2e-5, [&](const Stream& stream, At at) {
                      RouterForward(stream, router, at[0], model == 2 ? at[1] : Tensor(), at[2],
                                    at[3]);
                      RouterLosses losses;
                      losses.counts_UE = at[5];
                      losses.units = {37, 100};
                      if (numbered) {
                        losses.units = {0, 1, at[9]};
                        losses.share_U = at[10];
                      }
                      losses.balance_weight = 0.01f;
                      losses.z_weight = 0.1f;
                      CountChoices(stream, at[2], losses.units, at[5]);
                      RouterBackward(stream, router, at[0], at[2], at[4], losses, at[6], at[7]);
                      AddRouterLosses(stream, at[7], 0.5, 0.25, at[8]);
                    });
  }
}

TEST_F(AgreementTest, MarginsOfExpertsAreTheSame) {
  Router router;
  router.score = RouterScore::kSigmoid;
  router.topk = 4;
  HostTensor logits = HostTensor::Normal({300, 16}, kF32, 1),
             bias = HostTensor::Normal({16}, kF32, 2), expert({300, 4}, DType::kInt32),
             probability({300, 4}, kF32), counts({16, 600}, DType::kInt64);
  ExpectAgreement({&logits, &bias, &expert, &probability, &counts}, 2e-5,
                  [&](const Stream& stream, At at) {
                    RouterForward(stream, router, at[0], at[1], at[2], at[3]);
                    CountMargins(stream, at[0], at[1], at[2], at[4]);
                  });
}

TEST_F(AgreementTest, BalancedChoicesHaveTheSameBiases) {
  for (const Shape& shape : {Shape{7, 4}, Shape{300, 16}, Shape{64, 100}}) {
    HostTensor logits = HostTensor::Normal(shape, kF32, 1), bias({shape[1]}, kF32);
    ExpectAgreement({&logits, &bias}, 2e-5,
                    [&](const Stream& stream, At at) { SinkhornBias(stream, at[0], at[1]); });
  }
}

TEST_F(AgreementTest, ExpertsDropTheSameChoices) {
  for (DropPolicy policy : {DropPolicy::kProbability, DropPolicy::kPosition}) {
    HostTensor expert = Choices(70), probability = HostTensor::Normal({70, 2}, kF32, 1);
    ExpectAgreement({&expert, &probability}, 0, [&](const Stream& stream, At at) {
      DropOverCapacity(stream, policy, 5, {0, 30}, at[1], at[0]);
    });
  }
}

TEST_F(AgreementTest, PaddedExpertsHaveTheSamePlaces) {
  HostTensor expert = Choices(70), place({70, 2, 2}, DType::kInt32), rows({2, 2, 2}, DType::kInt64);
  ExpectAgreement({&expert, &place, &rows}, 0, [](const Stream& stream, At at) {
    PlaceByExpert(stream, at[0], at[1], at[2], /*padded=*/60);
  });
}

// Three experts of a rank, too, which two parts do not divide.
TEST_F(AgreementTest, ExpertsInPartsHaveTheSamePlaces) {
  for (const int64_t padded : {0, 60}) {
    for (const Shape& shape : {Shape{2, 2, 2}, Shape{1, 2, 4}, Shape{4, 2, 1}, Shape{2, 2, 3}}) {
      HostTensor expert = Choices(70), place({70, 2, 2}, DType::kInt32), rows(shape, DType::kInt64);
      ExpectAgreement({&expert, &place, &rows}, 0, [&](const Stream& stream, At at) {
        PlaceByExpert(stream, at[0], at[1], at[2], padded, /*parts=*/2);
      });
    }
  }
}

TEST_F(AgreementTest, TokensHaveTheSameHosts) {
  HostTensor expert = Choices(300), host({300, 2}, DType::kInt32),
             probability = HostTensor::Normal({300, 2}, kF32, 1), packed({300, 4}, kF32),
             here({300, 2}, DType::kInt32), back({300, 2}, kF32);
  ExpectAgreement({&expert, &host, &probability, &packed, &here, &back}, 0,
                  [](const Stream& stream, At at) {
                    FirstChoiceOfHost(stream, at[0], /*experts_per_host=*/2, at[1]);
                    PackChoices(stream, at[0], at[2], at[3]);
                    UnpackChoices(stream, at[3], /*first=*/2, /*experts_per_host=*/2, at[4], at[5]);
                  });
}

TEST_P(MoeCudaOpTest, RowsGoToTheirExpertsAndBack) {
  for (int64_t copies : {1, 2}) {
    for (int64_t columns : {1, 33, 264}) {
      const int64_t tokens = 301, rows_in_all = 559;
      HostTensor expert = Choices(tokens), place({tokens, 2, copies}, DType::kInt32),
                 rows({2, copies, 2}, DType::kInt64),
                 x = HostTensor::Normal({tokens, columns}, GetParam(), 1),
                 probability = HostTensor::Normal({tokens, 2}, kF32, 2),
                 spread = HostTensor::Normal({copies * rows_in_all, columns}, GetParam(), 3),
                 y = HostTensor::Normal({tokens, columns}, GetParam(), 4),
                 dx = HostTensor::Normal({tokens, columns}, GetParam(), 5),
                 dspread = HostTensor::Normal({copies * rows_in_all, columns}, GetParam(), 6),
                 dprobability({tokens, 2}, kF32);
      ExpectAgreement(
          {&expert, &place, &rows, &x, &probability, &spread, &y, &dx, &dspread, &dprobability},
          4 * OpTolerance(GetParam()), [](const Stream& stream, At at) {
            PlaceByExpert(stream, at[0], at[1], at[2]);
            Permute(stream, at[3], at[1], at[5]);
            Unpermute(stream, at[5], at[1], at[4], at[6]);
            PermuteBackward(stream, at[5], at[1], at[7]);
            UnpermuteBackward(stream, at[6], at[5], at[1], at[4], at[8], at[9]);
          });
    }
  }
}

TEST_P(MoeCudaOpTest, GroupedProductsAndTheirGradients) {
  const std::vector<RowGroup> groups = {{1, 0, 70}, {0, 70, 71}, {2, 71, 71}, {1, 71, 300}};
  struct Sizes {
    int64_t in, out;
  };
  // The sizes select vectors and single elements, less than a tile and more.
  for (const Sizes& size : {Sizes{1, 65}, Sizes{40, 65}, Sizes{130, 72}, Sizes{8, 16},
                            Sizes{40, 72}, Sizes{136, 200}}) {
    HostTensor x = HostTensor::Normal({300, size.in}, GetParam(), 1),
               w = HostTensor::Normal({3, size.out, size.in}, GetParam(), 2),
               y = Poisoned({300, size.out}),
               dy = HostTensor::Normal({300, size.out}, GetParam(), 4),
               dx = Poisoned({300, size.in}),
               dw = HostTensor::Normal({3, size.out, size.in}, kF32, 6);
    ExpectAgreement({&x, &w, &y, &dy, &dx, &dw}, 4 * OpTolerance(GetParam()),
                    [&](const Stream& stream, At at) {
                      GroupedLinearForward(stream, groups, at[0], at[1], at[2]);
                      GroupedLinearBackwardInput(stream, groups, at[3], at[1], at[4]);
                      GroupedLinearBackwardWeight(stream, groups, at[3], at[0], at[5]);
                    });
  }
}

TEST_P(MoeCudaOpTest, MoreGroupsThanOneLaunchTakes) {
  std::vector<RowGroup> groups;
  for (int64_t i = 0; i < 600; ++i) groups.push_back({i % 3, i, i + 1});
  groups.push_back({1, 600, 700});
  HostTensor x = HostTensor::Normal({700, 16}, GetParam(), 1),
             w = HostTensor::Normal({3, 8, 16}, GetParam(), 2), y = Poisoned({700, 8}),
             dy = HostTensor::Normal({700, 8}, GetParam(), 4), dx = Poisoned({700, 16}),
             dw = HostTensor::Normal({3, 8, 16}, kF32, 6);
  ExpectAgreement({&x, &w, &y, &dy, &dx, &dw}, 4 * OpTolerance(GetParam()),
                  [&](const Stream& stream, At at) {
                    GroupedLinearForward(stream, groups, at[0], at[1], at[2]);
                    GroupedLinearBackwardInput(stream, groups, at[3], at[1], at[4]);
                    GroupedLinearBackwardWeight(stream, groups, at[3], at[0], at[5]);
                  });
}

// Rows in turn, and those of each expert together, in more groups than one launch takes: the
// gradients' difference is 0 on both devices.
TEST_P(MoeCudaOpTest, WeightGradientsDoNotDependOnWhereTheRowsOfOtherExpertsLie) {
  constexpr int64_t kRows = 600, kExperts = 3, kIn = 16, kOut = 8;
  std::vector<RowGroup> in_turn, together;
  HostTensor x = HostTensor::Normal({kRows, kIn}, GetParam(), 1),
             dy = HostTensor::Normal({kRows, kOut}, GetParam(), 2),
             sorted_x({kRows, kIn}, GetParam()), sorted_dy({kRows, kOut}, GetParam());
  for (int64_t i = 0; i < kRows; ++i) {
    in_turn.push_back({i % kExperts, i, i + 1});
    const int64_t to = i % kExperts * (kRows / kExperts) + i / kExperts;
    together.push_back({i / (kRows / kExperts), i, i + 1});
    for (int64_t c = 0; c < kIn; ++c) sorted_x.Set(to * kIn + c, x.Get(i * kIn + c));
    for (int64_t c = 0; c < kOut; ++c) sorted_dy.Set(to * kOut + c, dy.Get(i * kOut + c));
  }
  HostTensor difference({kExperts, kOut, kIn}, kF32), dw({kExperts, kOut, kIn}, kF32);
  ExpectAgreement({&x, &dy, &sorted_x, &sorted_dy, &difference, &dw}, 0,
                  [&](const Stream& stream, At at) {
                    GroupedLinearBackwardWeight(stream, in_turn, at[1], at[0], at[4]);
                    GroupedLinearBackwardWeight(stream, together, at[3], at[2], at[5]);
                    Scale(stream, -1, at[5]);
                    Add(stream, at[5], at[4]);
                    Zero(stream, at[5]);
                  });
}

}  // namespace
}  // namespace megatron::ops
