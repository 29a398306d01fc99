#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cuda/cuda_op_test.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"

namespace megatron::ops {
namespace {

TEST_P(CudaOpTest, AttentionAndItsGradients) {
  struct Case {
    int64_t groups, heads, head_dim;
    bool causal;
    float dropout;
    int64_t window = 0;  // 0: none
    bool sinks = false;
    int64_t value_dim = 0;  // 0: head_dim
    float softcap = 0;
  };
  for (const Case& c :
       {Case{2, 1, 64, true, 0}, Case{1, 4, 32, true, 0.2f}, Case{2, 3, 20, false, 0.2f},
        Case{1, 2, 128, true, 0}, Case{1, 1, 192, false, 0}, Case{1, 2, 64, false, 0.2f},
        Case{2, 1, 128, false, 0.2f}, Case{1, 2, 64, true, 0.2f, 5}, Case{2, 1, 20, true, 0, 33},
        Case{1, 1, 128, true, 0, 33, true}, Case{2, 2, 20, false, 0.2f, 0, true},
        Case{1, 2, 64, true, 0, 0, true, 40}, Case{2, 1, 192, true, 0.2f, 0, false, 128},
        Case{1, 1, 20, false, 0.2f, 0, true, 70}, Case{2, 1, 64, true, 0.2f, 0, false, 0, 1.5f},
        Case{1, 2, 192, true, 0, 33, false, 128, 0.7f}, Case{2, 3, 20, false, 0, 0, true, 0, 2}}) {
    // Sequences of 1, 70, 0 and 40 queries, with 3, 70, 2 and 45 keys: each query sees a key, since
    // an lse of minus infinity compares with nothing.
    const int64_t queries = 111, keys = 120;
    const int64_t value_dim = c.value_dim > 0 ? c.value_dim : c.head_dim;
    const Shape q_shape = {queries, c.groups, c.heads, c.head_dim};
    const Shape k_shape = {keys, c.groups, c.head_dim};
    const Shape out_shape = {queries, c.groups, c.heads, value_dim};
    const Shape v_shape = {keys, c.groups, value_dim};
    HostTensor q = Normal(q_shape, 1), k = Normal(k_shape, 2), v = Normal(v_shape, 3),
               out = Normal(out_shape, 4), lse({queries, c.groups, c.heads}, kF32),
               dout = Normal(out_shape, 5), dq = Normal(q_shape, 6), dk = Normal(k_shape, 7),
               dv = Normal(v_shape, 8), cu_q = Ints({0, 1, 71, 71, 111}),
               largest = HostTensor::Of({3 + c.groups * c.heads}, kF32,
                                        std::vector<double>(3 + c.groups * c.heads, 1.5)),
               cu_k = Ints({0, 3, 73, 75, 120}), sample = Cyclic(queries, 3, 7, DType::kInt64),
               position = Cyclic(queries, 1, 97), sink = Normal({c.groups * c.heads}, 9),
               dsink = HostTensor::Normal({c.groups * c.heads}, kF32, 10);
    ExpectAgreement({&q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv, &cu_q, &cu_k, &sample, &position,
                     &largest, &sink, &dsink},
                    2 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
                      Attention attention;
                      attention.scale = 0.2f;
                      attention.causal = c.causal;
                      attention.window_size = c.window;
                      attention.softcap = c.softcap;
                      attention.cu_seqlens_q = at[9];
                      attention.cu_seqlens_k = at[10];
                      attention.max_seqlen_q = attention.max_seqlen_k = 70;
                      attention.dropout.probability = c.dropout;
                      attention.dropout.key = {5, 6};
                      attention.dropout.sample_T = at[11];
                      attention.dropout.position_T = at[12];
                      attention.dropout.first_column = 3;
                      attention.largest_scores_N = at[13];
                      const auto if_sinks = [&](const Tensor& x) { return c.sinks ? x : Tensor(); };
                      const AttentionInputs in = {at[0], at[1], at[2], Tensor(), if_sinks(at[14])};
                      AttentionForward(stream, attention, in, at[3], at[4]);
                      AttentionBackward(stream, attention, in, at[3], at[4], at[5],
                                        {at[6], at[7], at[8], Tensor(), if_sinks(at[15])});
                    });
  }
}

// Attention of two sequences of 64 tokens, and of several packed sequences; queries, keys and
// values are in one projection. By its name the test is left out when sanitizers run, since they
// would report on the library's own kernels (tools/gpu/correctness.py).
TEST_P(CudaOpTest, CudnnComputesWhatTheOpDoes) {
  const absl::StatusOr<std::string> cudnn = cuda::CudnnVersion();
  if (!cudnn.ok()) GTEST_SKIP() << cudnn.status().message();
  struct Case {
    std::vector<double> cu_seqlens;
    int64_t longest, groups, heads, head_dim;
    bool causal;
  };
  const std::vector<double> equal = {0, 64, 128}, packed = {0, 1, 71, 71, 128};
  for (const Case& c : {Case{equal, 64, 2, 1, 64, true}, Case{equal, 64, 2, 1, 128, true},
                        Case{equal, 64, 2, 3, 64, true}, Case{equal, 64, 2, 1, 64, false},
                        Case{packed, 70, 2, 1, 64, true}, Case{packed, 70, 2, 1, 128, false},
                        Case{equal, 64, 2, 3, 96, true}, Case{packed, 70, 2, 3, 128, true},
                        Case{equal, 64, 1, 1, 20, true}}) {
    SCOPED_TRACE(::testing::Message() << c.cu_seqlens.size() - 1 << " sequences, heads of "
                                      << c.head_dim << ", " << c.heads << " a group");
    const int64_t tokens = 128;
    const Shape projection = {tokens, c.groups, c.heads + 2, c.head_dim};
    const Shape rows = {tokens, c.groups, c.heads, c.head_dim};
    HostTensor qkv = Normal(projection, 1), out = Normal(rows, 2), dout = Normal(rows, 3),
               d_qkv = Normal(projection, 4), lse({tokens, c.groups, c.heads}, kF32),
               cu = Ints(c.cu_seqlens);
    const auto views = [&](const Tensor& x) {
      return AttentionInputs{x.Slice(2, 0, c.heads), x.Select(2, c.heads), x.Select(2, c.heads + 1),
                             Tensor()};
    };
    // Calls that cuDNN does not support (fp32, heads of 20) are computed by our own kernels.
    ExpectAgreement({&qkv, &out, &dout, &d_qkv, &lse, &cu}, 2 * SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      Attention attention;
                      attention.kernels = {AttentionKernel::kCudnnDeterministic};
                      attention.scale = 0.1f;
                      attention.causal = c.causal;
                      attention.cu_seqlens_q = attention.cu_seqlens_k = at[5];
                      attention.max_seqlen_q = attention.max_seqlen_k = c.longest;
                      AttentionForward(stream, attention, views(at[0]), at[1], at[4]);
                      AttentionBackward(stream, attention, views(at[0]), at[1], at[4], at[2],
                                        views(at[3]));
                    });
  }
}

TEST_P(CudaOpTest, AttentionWithABiasByDistance) {
  for (bool causal : {true, false}) {
    const int64_t tokens = 111, groups = 2, heads = 2, head_dim = 40, width = 2 * 9 + 1;
    const Shape q_shape = {tokens, groups, heads, head_dim}, k_shape = {tokens, groups, head_dim};
    HostTensor q = Normal(q_shape, 1), k = Normal(k_shape, 2), v = Normal(k_shape, 3),
               out = Normal(q_shape, 4), lse({tokens, groups, heads}, kF32),
               dout = Normal(q_shape, 5), dq = Normal(q_shape, 6), dk = Normal(k_shape, 7),
               dv = Normal(k_shape, 8), cu = Ints({0, 1, 71, 71, 111}),
               bias = HostTensor::Normal({width, groups * heads}, kF32, 9),
               dbias = HostTensor::Normal({width, groups * heads}, kF32, 10);
    ExpectAgreement({&q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv, &cu, &bias, &dbias},
                    2 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
                      Attention attention;
                      attention.scale = 0.2f;
                      attention.causal = causal;
                      attention.cu_seqlens_q = attention.cu_seqlens_k = at[9];
                      attention.max_seqlen_q = attention.max_seqlen_k = 70;
                      const AttentionInputs in = {at[0], at[1], at[2], at[10]};
                      AttentionForward(stream, attention, in, at[3], at[4]);
                      AttentionBackward(stream, attention, in, at[3], at[4], at[5],
                                        {at[6], at[7], at[8], at[11]});
                    });
  }
}

// Further keys of queries that have seen some: every second key of two sequences. In a window of
// one position, only some queries see any.
TEST_P(CudaOpTest, AttentionOverAPartOfTheKeys) {
  const int64_t queries = 110, keys = 55, groups = 2, heads = 2, head_dim = 40;
  const Shape q_shape = {queries, groups, heads, head_dim}, k_shape = {keys, groups, head_dim};
  std::vector<double> place_q, place_k;
  for (int i = 0; i < queries; ++i) place_q.push_back(i < 70 ? i : i - 70);
  for (int i = 0; i < keys; ++i) place_k.push_back(2 * (i < 35 ? i : i - 35));
  for (const auto& [causal, window] :
       {std::pair{true, 0}, std::pair{false, 0}, std::pair{true, 1}, std::pair{true, 20}}) {
    HostTensor q = Normal(q_shape, 1), k = Normal(k_shape, 2), v = Normal(k_shape, 3),
               all = Normal(q_shape, 4), dout = Normal(q_shape, 5),
               out = HostTensor::Normal(q_shape, kF32, 6),
               lse = HostTensor::Normal({queries, groups, heads}, kF32, 7),
               dq = HostTensor::Normal(q_shape, kF32, 8), dk = HostTensor::Normal(k_shape, kF32, 9),
               dv = HostTensor::Normal(k_shape, kF32, 10), cu_q = Ints({0, 70, 110}),
               cu_k = Ints({0, 35, 55}), sample = Cyclic(queries, 3, 7, DType::kInt64),
               position = Cyclic(queries, 1, 97),
               at_q = HostTensor::Of({queries}, DType::kInt32, place_q),
               at_k = HostTensor::Of({keys}, DType::kInt32, place_k),
               sink = Normal({groups * heads}, 11),
               dsink = HostTensor::Normal({groups * heads}, kF32, 12);
    ExpectAgreement({&q, &k, &v, &all, &dout, &out, &lse, &dq, &dk, &dv, &cu_q, &cu_k, &sample,
                     &position, &at_q, &at_k, &sink, &dsink},
                    2 * SumTolerance(dtype()),
                    [&, causal = causal, window = window](const Stream& stream, At at) {
                      Attention attention;
                      attention.scale = 0.2f;
                      attention.causal = causal;
                      attention.window_size = window;
                      attention.cu_seqlens_q = at[10];
                      attention.cu_seqlens_k = at[11];
                      attention.max_seqlen_q = attention.max_seqlen_k = 70;
                      attention.dropout = {0.2f, {5, 6}, at[12], at[13], 3};
                      attention.place_q_T = at[14];
                      attention.place_k_U = at[15];
                      attention.add_to_queries = attention.add_to_keys = true;
                      const AttentionInputs in = {at[0], at[1], at[2], Tensor(), at[16]};
                      AttentionForward(stream, attention, in, at[5], at[6]);
                      AttentionBackward(stream, attention, in, at[3], at[6], at[4],
                                        {at[7], at[8], at[9], Tensor(), at[17]});
                    });
  }
}

}  // namespace
}  // namespace megatron::ops
