// The runner with our own emulated kernels and a simulated cuDNN: plain loops over the description
// and the pointers of a plan, so that a wrong stride, offset or length gives wrong results.
#include "megatron/ops/cuda/cudnn/attention_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cuda/agreement.h"

namespace megatron::ops::cuda {
namespace {

constexpr int64_t kWorkspace = 1000;
constexpr char kRubbish = 0x7b;

// What cuDNN makes of the strides of a log-sum-exp that is not packed. Kernels that ignore them
// take it for compact.
enum class LseStrides { kHeeded, kIgnoredByBackward, kIgnored };

// Elements of one tensor of a call.
class Played {
 public:
  Played(const CudnnAttention& attention, const CudnnPointers& at, CudnnRole role,
         bool ignores_strides = false)
      : attention_(attention),
        role_(role),
        data_(at.tensors[role]),
        offsets_(static_cast<const int64_t*>(at.offsets[role])),
        strides_(ignores_strides && !attention.packed ? Compact(attention.Dims(role))
                                                      : attention.StridesOf(role)) {}

  double Get(int64_t sequence, int64_t head, int64_t token, int64_t d) const {
    const int64_t i = Index(sequence, head, token, d);
    if (role_ == kLse) return static_cast<const float*>(data_)[i];
    return attention_.dtype == DType::kBFloat16 ? ToFloat(static_cast<const BFloat16*>(data_)[i])
                                                : ToFloat(static_cast<const Float16*>(data_)[i]);
  }
  void Set(int64_t sequence, int64_t head, int64_t token, int64_t d, double value) const {
    const int64_t i = Index(sequence, head, token, d);
    const float rounded = static_cast<float>(value);
    if (role_ == kLse) {
      static_cast<float*>(data_)[i] = rounded;
    } else if (attention_.dtype == DType::kBFloat16) {
      static_cast<BFloat16*>(data_)[i] = ToBFloat16(rounded);
    } else {
      static_cast<Float16*>(data_)[i] = ToFloat16(rounded);
    }
  }

 private:
  static std::array<int64_t, 4> Compact(const std::array<int64_t, 4>& dims) {
    return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  }
  int64_t Index(int64_t sequence, int64_t head, int64_t token, int64_t d) const {
    const int64_t begin = attention_.packed ? offsets_[sequence] : sequence * strides_[0];
    return begin + head * strides_[1] + token * strides_[2] + d * strides_[3];
  }

  const CudnnAttention& attention_;
  const CudnnRole role_;
  void* const data_;
  const int64_t* const offsets_;
  const std::array<int64_t, 4> strides_;
};

class PlayedPlan : public CudnnPlan {
 public:
  PlayedPlan(const CudnnAttention& attention, int64_t workspace_bytes, LseStrides lse_strides)
      : attention_(attention),
        workspace_bytes_(workspace_bytes),
        ignores_lse_strides_(lse_strides == LseStrides::kIgnored ||
                             (attention.backward && lse_strides != LseStrides::kHeeded)) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void Run(const CudaStream&, const CudnnPointers& at) const override {
    std::memset(at.workspace, kRubbish, workspace_bytes_);
    for (int64_t s = 0; s < attention_.sequences; ++s) {
      const int64_t queries = Length(at.query_lengths, s, attention_.queries);
      const int64_t keys = Length(at.key_lengths, s, attention_.keys);
      ASSERT_LE(queries, attention_.queries);
      ASSERT_LE(keys, attention_.keys);
      for (int64_t group = 0; group < attention_.groups; ++group)
        attention_.backward ? Backward(at, s, group, queries, keys)
                            : Forward(at, s, group, queries, keys);
    }
  }

 private:
  int64_t Length(const void* lengths, int64_t s, int64_t all) const {
    return attention_.packed ? static_cast<const int32_t*>(lengths)[s] : all;
  }
  // The mask starts at the first query and the first key, unlike our op's mask.
  int64_t KeysSeen(int64_t query, int64_t keys) const {
    return attention_.causal ? std::min(query + 1, keys) : keys;
  }
  double Dot(const Played& a, const Played& b, int64_t s, int64_t a_head, int64_t a_token,
             int64_t b_head, int64_t b_token) const {
    double sum = 0;
    for (int64_t d = 0; d < attention_.head_dim; ++d)
      sum += a.Get(s, a_head, a_token, d) * b.Get(s, b_head, b_token, d);
    return sum;
  }

  void Forward(const CudnnPointers& at, int64_t s, int64_t group, int64_t queries,
               int64_t keys) const {
    const Played q(attention_, at, kQ), k(attention_, at, kK), v(attention_, at, kV),
        out(attention_, at, kOut), lse(attention_, at, kLse, ignores_lse_strides_);
    const int64_t heads = attention_.query_heads / attention_.groups;
    for (int64_t head = group * heads; head < (group + 1) * heads; ++head) {
      for (int64_t i = 0; i < queries; ++i) {
        double sum = 0;
        std::vector<double> p(KeysSeen(i, keys)), row(attention_.head_dim);
        for (size_t j = 0; j < p.size(); ++j) {
          p[j] = std::exp(attention_.scale * Dot(q, k, s, head, i, group, j));
          sum += p[j];
          for (size_t d = 0; d < row.size(); ++d) row[d] += p[j] * v.Get(s, group, j, d);
        }
        for (size_t d = 0; d < row.size(); ++d) out.Set(s, head, i, d, row[d] / sum);
        lse.Set(s, head, i, 0, std::log(sum));
      }
    }
  }

  void Backward(const CudnnPointers& at, int64_t s, int64_t group, int64_t queries,
                int64_t keys) const {
    const Played q(attention_, at, kQ), k(attention_, at, kK), v(attention_, at, kV),
        out(attention_, at, kOut), lse(attention_, at, kLse, ignores_lse_strides_),
        dout(attention_, at, kDout), dq(attention_, at, kDq), dk(attention_, at, kDk),
        dv(attention_, at, kDv);
    const int64_t heads = attention_.query_heads / attention_.groups, width = attention_.head_dim;
    std::vector<double> dk_sums(keys * width), dv_sums(keys * width);
    for (int64_t head = group * heads; head < (group + 1) * heads; ++head) {
      for (int64_t i = 0; i < queries; ++i) {
        std::vector<double> dq_sums(width);
        const double delta = Dot(out, dout, s, head, i, head, i);
        for (int64_t j = 0; j < KeysSeen(i, keys); ++j) {
          const double p =
              std::exp(attention_.scale * Dot(q, k, s, head, i, group, j) - lse.Get(s, head, i, 0));
          const double ds = attention_.scale * p * (Dot(dout, v, s, head, i, group, j) - delta);
          for (int64_t d = 0; d < width; ++d) {
            dq_sums[d] += ds * k.Get(s, group, j, d);
            dk_sums[j * width + d] += ds * q.Get(s, head, i, d);
            dv_sums[j * width + d] += p * dout.Get(s, head, i, d);
          }
        }
        for (int64_t d = 0; d < width; ++d) dq.Set(s, head, i, d, dq_sums[d]);
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t d = 0; d < width; ++d) {
        dk.Set(s, group, j, d, dk_sums[j * width + d]);
        dv.Set(s, group, j, d, dv_sums[j * width + d]);
      }
    }
  }

  const CudnnAttention attention_;
  const int64_t workspace_bytes_;
  const bool ignores_lse_strides_;
};

class PlayedCudnn : public CudnnPlanMaker {
 public:
  std::unique_ptr<CudnnPlan> Make(const CudaStream&, const CudnnAttention& attention) override {
    made.push_back(attention);
    if (workspace_bytes < 0) return nullptr;
    return std::make_unique<PlayedPlan>(attention, workspace_bytes, lse_strides);
  }

  std::vector<CudnnAttention> made;
  int64_t workspace_bytes = kWorkspace;  // negative: there are no plans
  LseStrides lse_strides = LseStrides::kHeeded;
};

struct Case {
  std::vector<double> cu_seqlens;
  int64_t longest;
  int64_t groups, heads;
  bool causal;
};

class AttentionRunnerTest : public AgreementTest {
 protected:
  // Compares the runner on the emulated device with the op on the CPU.
  void Expect(const Case& c, DType dtype) {
    const int64_t tokens = static_cast<int64_t>(c.cu_seqlens.back()), head_dim = 16;
    const Shape packed = {tokens, c.groups, c.heads + 2, head_dim};
    const Shape rows = {tokens, c.groups, c.heads, head_dim};
    HostTensor qkv = HostTensor::Normal(packed, dtype, 1), out = HostTensor::Normal(rows, dtype, 2),
               dout = HostTensor::Normal(rows, dtype, 3),
               d_qkv = HostTensor::Normal(packed, dtype, 4),
               lse({tokens, c.groups, c.heads}, DType::kFloat32),
               cu = HostTensor::Of({static_cast<int64_t>(c.cu_seqlens.size())}, DType::kInt32,
                                   c.cu_seqlens);
    ExpectAgreement({&qkv, &out, &dout, &d_qkv, &lse, &cu}, 0.02,
                    [&](const Stream& stream, absl::Span<const Tensor> at) {
                      Attention attention;
                      attention.scale = 0.2f;
                      attention.causal = c.causal;
                      attention.cu_seqlens_q = attention.cu_seqlens_k = at[5];
                      attention.max_seqlen_q = attention.max_seqlen_k = c.longest;
                      Run(stream, {attention, Views(at[0], c.heads), at[1], at[4], at[2],
                                   Views(at[3], c.heads)});
                    });
  }

  static AttentionInputs Views(const Tensor& qkv, int64_t heads) {
    return {qkv.Slice(2, 0, heads), qkv.Select(2, heads), qkv.Select(2, heads + 1), Tensor()};
  }

  void Run(const Stream& stream, const AttentionCall& both) {
    if (stream.cuda() == nullptr) {
      ops::AttentionForward(stream, both.attention, both.in, both.out_TGRE, both.lse_TGR);
      return ops::AttentionBackward(stream, both.attention, both.in, both.out_TGRE, both.lse_TGR,
                                    both.dout_TGRE, both.gradients);
    }
    AttentionCall forward = both;
    forward.dout_TGRE = Tensor();
    forward.gradients = {};
    EXPECT_TRUE(runner_.Run(stream, forward));
    EXPECT_TRUE(runner_.Run(stream, both));
  }

  PlayedCudnn cudnn_;
  CudnnAttentionRunner runner_{&cudnn_};
};

TEST_F(AttentionRunnerTest, SequencesOfOneLengthAgreeWithTheOp) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (bool causal : {true, false}) {
      Expect({{0, 9, 18, 27}, 9, 2, 1, causal}, dtype);
      EXPECT_FALSE(cudnn_.made.back().packed);
    }
  }
}

TEST_F(AttentionRunnerTest, GroupsOfQueriesAreCopiedTogetherAndTheirGradientsBack) {
  for (bool causal : {true, false}) Expect({{0, 9, 18}, 9, 2, 3, causal}, DType::kBFloat16);
}

// Backward's kernels for compute capability 8.0 do so before cuDNN 9.26, forward's before 9.12.
TEST_F(AttentionRunnerTest, KernelsThatIgnoreTheStridesOfTheLogSumExpAgreeWithTheOp) {
  cudnn_.lse_strides = LseStrides::kIgnoredByBackward;
  Expect({{0, 9, 18}, 9, 2, 3, true}, DType::kBFloat16);
  // Another length has other plans.
  cudnn_.lse_strides = LseStrides::kIgnored;
  Expect({{0, 8, 16}, 8, 2, 3, true}, DType::kBFloat16);
  EXPECT_EQ(cudnn_.made.size(), 4u);
}

TEST_F(AttentionRunnerTest, PackedSequencesAgreeWithTheOp) {
  for (int64_t heads : {1, 3}) {
    for (bool causal : {true, false}) {
      Expect({{0, 1, 20, 20, 27, 40}, 19, 2, heads, causal}, DType::kBFloat16);
      EXPECT_TRUE(cudnn_.made.back().packed);
      EXPECT_EQ(cudnn_.made.back().sequences, 8);
    }
  }
}

TEST_F(AttentionRunnerTest, APlanIsMadeOnceForAllCallsThatItServes) {
  Expect({{0, 1, 20, 20, 27, 40}, 19, 2, 1, true}, DType::kBFloat16);
  const size_t plans = cudnn_.made.size();
  EXPECT_EQ(plans, 2u);  // forward and backward
  Expect({{0, 10, 12, 30, 31, 35}, 18, 2, 1, true}, DType::kBFloat16);
  EXPECT_EQ(cudnn_.made.size(), plans);
}

TEST_F(AttentionRunnerTest, UnsupportedCallsAreLeftToTheCaller) {
  ThreadPool pool(1);
  CudaStream cuda(0);
  const Stream stream = Stream::Cuda(0, &cuda);
  const HostTensor q({16, 1, 1, 16}, DType::kBFloat16), k({16, 1, 16}, DType::kBFloat16),
      lse({16, 1, 1}, DType::kFloat32), cu = HostTensor::Of({2}, DType::kInt32, {0, 16});
  AttentionCall call;
  call.in = {q, k, k, Tensor()};
  call.out_TGRE = q;
  call.lse_TGR = lse;
  call.attention.cu_seqlens_q = call.attention.cu_seqlens_k = cu;
  call.attention.max_seqlen_q = call.attention.max_seqlen_k = 16;
  // Neither a call without a kernel nor one that wants too much memory asks for a plan twice.
  for (const int64_t bytes : {int64_t{-1}, CudnnAttentionRunner::kMostWorkspaceBytes + 1}) {
    cudnn_.workspace_bytes = bytes;
    call.attention.scale = bytes < 0 ? 1.0f : 2.0f;
    const size_t before = cudnn_.made.size();
    EXPECT_FALSE(runner_.Run(stream, call));
    EXPECT_FALSE(runner_.Run(stream, call));
    EXPECT_EQ(cudnn_.made.size(), before + 1);
  }
  const size_t before = cudnn_.made.size();
  call.attention.dropout.probability = 0.1f;
  EXPECT_FALSE(runner_.Run(stream, call));
  EXPECT_EQ(cudnn_.made.size(), before);
}

}  // namespace
}  // namespace megatron::ops::cuda
