#include "tools/interop/reference_runs.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron {
namespace {

struct Golden {
  std::vector<float> losses, norms;
};

// By PyTorch 1.13 in fp32: pytorch_reference/compare.py --print_goldens.
const std::map<std::string, Golden>& Goldens() {
  static const auto* goldens = new std::map<std::string, Golden>{
      {"gpt2_adam",
       {{4.6173105f, 4.5911541f, 4.6167397f, 4.5834627f, 4.5352707f, 4.4913225f, 4.5103054f,
         4.4629798f, 4.4589314f, 4.4553924f, 4.460515f,  4.3997607f, 4.3513427f, 4.3565903f,
         4.3425269f, 4.4018111f, 4.3446674f, 4.3388467f, 4.3172035f, 4.3078542f},
        {1.9680147f, 1.8812391f, 2.1108954f, 1.9863871f, 1.7385769f, 1.6800933f, 1.8063111f,
         1.7781094f, 1.8054577f, 2.0734775f, 2.155802f,  1.6522201f, 1.8091121f, 1.962544f,
         1.7324421f, 2.4417238f, 1.7629048f, 2.003762f,  1.7853942f, 1.6648169f}}},
      {"gpt2_sgd",
       {{4.6173105f, 4.5911541f, 4.6303811f, 4.6170201f, 4.5875902f, 4.5714178f, 4.5903563f,
         4.5621934f, 4.5626969f, 4.5795255f, 4.5904942f, 4.5351939f, 4.50635f,   4.5090742f,
         4.4913831f, 4.5354195f, 4.4854455f, 4.4660077f, 4.4799385f, 4.4167891f},
        {1.9680147f, 1.8812391f, 2.1244955f, 2.0191185f, 1.6659648f, 1.4508321f, 1.3652842f,
         1.2986025f, 1.4664268f, 1.40907f,   1.664614f,  1.3475659f, 1.6115568f, 1.6469404f,
         1.5569847f, 1.8483529f, 1.7450094f, 1.9052082f, 2.1084418f, 1.8284162f}}},
      {"llama_adam",
       {{4.6339993f, 4.6078882f, 4.6098084f, 4.584734f,  4.5350151f, 4.4914732f, 4.4788961f,
         4.4610276f, 4.4322834f, 4.4072261f, 4.3791037f, 4.3440218f, 4.312747f,  4.3084259f,
         4.2893009f, 4.3108182f, 4.2630634f, 4.2432075f, 4.2322059f, 4.2205706f},
        {1.328794f,  1.3266362f, 1.3821933f, 1.4682885f, 1.3456576f, 1.2861443f, 1.2766339f,
         1.3666761f, 1.5292884f, 1.5085232f, 1.5339044f, 1.4321029f, 1.3389506f, 1.3917235f,
         1.4640553f, 1.5053616f, 1.5465666f, 1.4523522f, 1.3819656f, 1.416393f}}},
      {"llama_sgd",
       {{4.6339993f, 4.6078882f, 4.616735f,  4.6050434f, 4.5748878f, 4.5502f,    4.529355f,
         4.5074005f, 4.4849777f, 4.4642105f, 4.4209156f, 4.3919349f, 4.3618031f, 4.3550811f,
         4.3285704f, 4.3551011f, 4.295423f,  4.2914257f, 4.2733297f, 4.2578721f},
        {1.328794f,  1.3266362f, 1.3813589f, 1.4558872f, 1.346235f,  1.2824219f, 1.2384268f,
         1.3074416f, 1.3822896f, 1.3647667f, 1.3572199f, 1.3216188f, 1.2721028f, 1.2780457f,
         1.3087742f, 1.3592914f, 1.3737299f, 1.3507421f, 1.2736452f, 1.2889398f}}}};
  return *goldens;
}

void ExpectRelative(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << "step " << i;
  }
}

TEST(ReferenceRunsTest, LossesAndGradientNormsAreThoseOfPyTorch) {
  ThreadPool pool(2);
  for (const ReferenceRun& run : ReferenceRuns()) {
    SCOPED_TRACE(run.name);
    const auto result = Train(run, Stream::Cpu(&pool));
    ASSERT_THAT(result, absl_testing::IsOk());
    ASSERT_TRUE(Goldens().count(run.name));
    ExpectRelative(result->losses, Goldens().at(run.name).losses);
    ExpectRelative(result->grad_norms, Goldens().at(run.name).norms);
  }
}

TEST(ReferenceRunsTest, TokensHaveSomethingToLearn) {
  const ReferenceRun run = ReferenceRuns().front();
  const std::vector<int32_t> tokens = ReferenceTokens(run);
  EXPECT_EQ(tokens.size(), static_cast<size_t>(20 * 4 * 33));
  EXPECT_THAT(tokens, ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(100))));
  const auto result = [&] {
    ThreadPool pool(1);
    return Train(run, Stream::Cpu(&pool));
  }();
  ASSERT_THAT(result, absl_testing::IsOk());
  EXPECT_LT(result->losses.back(), result->losses.front() - 0.1);
}

}  // namespace
}  // namespace megatron
