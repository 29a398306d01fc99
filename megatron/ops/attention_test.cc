#include "megatron/ops/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

struct Sizes {
  std::vector<int> q_lengths, k_lengths;
  int groups = 1, heads = 1, dim = 8;
  bool causal = true;
  float dropout = 0;
  int bias_reach = -1;  // < 0: no bias
  int window = 0;       // 0: none
  bool sinks = false;
  int value_dim = 0;  // 0: dim
  float softcap = 0;  // 0: none

  int64_t values() const { return value_dim > 0 ? value_dim : dim; }
};

HostTensor CumulativeLengths(const std::vector<int>& lengths) {
  std::vector<double> ends = {0};
  for (int length : lengths) ends.push_back(ends.back() + length);
  return HostTensor::Of({static_cast<int64_t>(ends.size())}, DType::kInt32, ends);
}

// All operands of one problem, random but reproducible. Samples are numbered from 2^33 on, so that
// both words of the number matter.
struct Problem {
  Sizes setup;
  HostTensor cu_q, cu_k, sample, position;
  HostTensor q, k, v, dout, out, lse, dq, dk, dv;
  HostTensor bias, dbias, sink, dsink;
  Attention attention;

  Problem(const Sizes& s, DType dtype)
      : setup(s),
        cu_q(CumulativeLengths(s.q_lengths)),
        cu_k(CumulativeLengths(s.k_lengths)),
        sample({Tokens(cu_q)}, DType::kInt64),
        position({Tokens(cu_q)}, DType::kInt32),
        q(HostTensor::Normal(QShape(), dtype, 1)),
        k(HostTensor::Normal(KShape(), dtype, 2)),
        v(HostTensor::Normal(VShape(), dtype, 3)),
        dout(HostTensor::Normal(OutShape(), dtype, 4)),
        out(OutShape(), dtype),
        lse({Tokens(cu_q), s.groups, s.heads}, DType::kFloat32),
        dq(QShape(), dtype),
        dk(KShape(), dtype),
        dv(VShape(), dtype),
        bias(HostTensor::Normal(BiasShape(), DType::kFloat32, 5)),
        dbias(BiasShape(), DType::kFloat32),
        sink(HostTensor::Normal({s.groups * s.heads}, dtype, 6)),
        dsink({s.groups * s.heads}, DType::kFloat32) {
    for (size_t s = 0; s + 1 < static_cast<size_t>(cu_q.numel()); ++s) {
      for (int64_t t = cu_q.Get(s); t < cu_q.Get(s + 1); ++t) {
        sample.Set(t, static_cast<double>((int64_t{1} << 33) + 5 + s));
        position.Set(t, t - cu_q.Get(s));
      }
    }
    attention.scale = static_cast<float>(1 / std::sqrt(setup.dim));
    attention.softcap = setup.softcap;
    attention.causal = setup.causal;
    attention.window_size = setup.window;
    attention.cu_seqlens_q = cu_q;
    attention.cu_seqlens_k = cu_k;
    attention.dropout = {setup.dropout, {12, 34}, sample, position, 3};
  }

  static int64_t Tokens(const HostTensor& cu) {
    return static_cast<int64_t>(cu.Get(cu.numel() - 1));
  }
  Shape QShape() const { return {Tokens(cu_q), setup.groups, setup.heads, setup.dim}; }
  Shape KShape() const { return {Tokens(cu_k), setup.groups, setup.dim}; }
  Shape VShape() const { return {Tokens(cu_k), setup.groups, setup.values()}; }
  Shape OutShape() const { return {Tokens(cu_q), setup.groups, setup.heads, setup.values()}; }
  Shape BiasShape() const {
    return {2 * std::max(setup.bias_reach, 0) + 1, setup.groups * setup.heads};
  }
  Tensor IfBiased(const HostTensor& x) const { return setup.bias_reach < 0 ? Tensor() : x; }
  Tensor IfSinks(const HostTensor& x) const { return setup.sinks ? Tensor(x) : Tensor(); }
  AttentionInputs Inputs() const { return {q, k, v, IfBiased(bias), IfSinks(sink)}; }

  void Forward(ThreadPool* pool) {
    AttentionForward(Stream::Cpu(pool), attention, Inputs(), out, lse);
  }
  void Backward(ThreadPool* pool) {
    AttentionBackward(Stream::Cpu(pool), attention, Inputs(), out, lse, dout,
                      {dq, dk, dv, IfBiased(dbias), IfSinks(dsink)});
  }
};

// The op as the header defines it, in double precision and with the S x S matrix.
struct Reference {
  std::vector<double> q, k, v, dout;
  std::vector<double> out, lse, dq, dk, dv, dbias, dsink;
  std::vector<double> largest_scores;  // one for each head; 0 where all are negative

  explicit Reference(const Problem& p)
      : q(p.q.Values()),
        k(p.k.Values()),
        v(p.v.Values()),
        dout(p.dout.Values()),
        out(dout.size()),
        lse(p.lse.numel()),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()),
        dbias(p.bias.numel()),
        dsink(p.sink.numel()),
        largest_scores(p.setup.groups * p.setup.heads) {
    for (int64_t s = 0; s + 1 < p.cu_q.numel(); ++s) {
      for (int64_t t = p.cu_q.Get(s); t < p.cu_q.Get(s + 1); ++t) {
        for (int64_t g = 0; g < p.setup.groups; ++g) {
          for (int64_t r = 0; r < p.setup.heads; ++r) Row(p, s, t, g, r);
        }
      }
    }
  }

  static double Factor(const Problem& p, int64_t t, int64_t head, int64_t j) {
    const Dropout& dropout = p.attention.dropout;
    if (dropout.probability == 0) return 1;
    const uint64_t seed = dropout.key.lo | uint64_t{dropout.key.hi} << 32;
    const PhiloxKey key = DeriveKey(seed, kPhiloxDropout, dropout.first_column + head, 0);
    const uint64_t sample = dropout.sample_T.data<int64_t>()[t];
    const uint32_t position = dropout.position_T.data<int32_t>()[t];
    const PhiloxBlock block =
        Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), position,
                      static_cast<uint32_t>(j / 4)}});
    const bool kept = block.word[j % 4] >= std::floor(double{dropout.probability} * 4294967296.0);
    return kept ? 1 / (1 - double{dropout.probability}) : 0;
  }

  void Row(const Problem& p, int64_t s, int64_t t, int64_t g, int64_t r) {
    const int64_t dim = p.setup.dim, values = p.setup.values();
    const int64_t k_begin = p.cu_k.Get(s), k_length = p.cu_k.Get(s + 1) - k_begin;
    const int64_t q_length = p.cu_q.Get(s + 1) - p.cu_q.Get(s), i = t - p.cu_q.Get(s);
    const int64_t row = (t * p.setup.groups + g) * p.setup.heads + r;
    const int64_t visible =
        p.setup.causal ? std::max<int64_t>(0, i + 1 + k_length - q_length) : k_length;
    const int64_t first =
        p.setup.window > 0 ? std::max<int64_t>(0, visible - 1 - p.setup.window) : 0;
    const int64_t head = g * p.setup.heads + r;
    const auto key_row = [&](int64_t j) { return ((k_begin + j) * p.setup.groups + g) * dim; };
    const auto value_row = [&](int64_t j) { return ((k_begin + j) * p.setup.groups + g) * values; };
    const auto bias_entry = [&](int64_t j) {
      const int64_t reach = p.setup.bias_reach, distance = j - (i + k_length - q_length);
      return (std::min(std::max(distance, -reach), reach) + reach) * p.setup.groups *
                 p.setup.heads +
             g * p.setup.heads + r;
    };
    std::vector<double> probability(visible), factor(visible), gradient(visible), slope(visible, 1);
    double max = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
    for (int64_t j = first; j < visible; ++j) {
      for (int64_t d = 0; d < dim; ++d) {
        probability[j] += q[row * dim + d] * k[key_row(j) + d];
      }
      probability[j] *= p.attention.scale;
      if (const double cap = p.setup.softcap; cap > 0) {
        const double tanh = std::tanh(probability[j] / cap);
        probability[j] = cap * tanh;
        slope[j] = 1 - tanh * tanh;
      }
      if (p.setup.bias_reach >= 0) probability[j] += p.bias.Get(bias_entry(j));
      max = std::max(max, probability[j]);
    }
    largest_scores[head] = std::max(largest_scores[head], max);
    if (p.setup.sinks) {
      max = std::max(max, p.sink.Get(head));
      sum = std::exp(p.sink.Get(head) - max);
    }
    for (int64_t j = first; j < visible; ++j)
      sum += probability[j] = std::exp(probability[j] - max);
    lse[row] = max + std::log(sum);
    for (int64_t j = first; j < visible; ++j) {
      probability[j] /= sum;
      factor[j] = Factor(p, t, g * p.setup.heads + r, j);
      for (int64_t d = 0; d < values; ++d) {
        const double dy = dout[row * values + d];
        out[row * values + d] += probability[j] * factor[j] * v[value_row(j) + d];
        dv[value_row(j) + d] += probability[j] * factor[j] * dy;
        gradient[j] += factor[j] * dy * v[value_row(j) + d];
      }
      delta += probability[j] * gradient[j];
    }
    if (p.setup.sinks) dsink[head] -= std::exp(p.sink.Get(head) - lse[row]) * delta;
    for (int64_t j = first; j < visible; ++j) {
      const double dscore = probability[j] * (gradient[j] - delta);
      const double ds = dscore * slope[j] * p.attention.scale;
      if (p.setup.bias_reach >= 0) dbias[bias_entry(j)] += dscore;
      for (int64_t d = 0; d < dim; ++d) {
        dq[row * dim + d] += ds * k[key_row(j) + d];
        dk[key_row(j) + d] += ds * q[row * dim + d];
      }
    }
  }
};

std::vector<Sizes> Cases() {
  return {
      {{5}, {5}, 1, 1, 8},
      {{1, 6}, {1, 6}, 2, 1, 64},
      {{64, 65, 1, 0, 63}, {64, 65, 1, 0, 63}, 2, 1, 16},
      {{130}, {130}, 1, 3, 20},
      {{17, 40}, {17, 40}, 2, 2, 80, false},
      {{70, 3}, {9, 200}, 2, 1, 64, false},    // cross attention
      {{1, 10}, {150, 90}, 1, 4, 32},          // queries at the end of longer keys
      {{40}, {33}, 1, 2, 8},                   // the first queries see nothing
      {{3, 0, 4}, {0, 7, 4}, 1, 1, 8, false},  // a sequence without keys, one without queries
      {{200, 31}, {200, 31}, 2, 2, 64, true, 0.3f},
      {{70}, {133}, 1, 1, 128, false, 0.1f},
      {{150, 40}, {150, 40}, 3, 1, 16, false, 0, 9},
      {{90, 0, 3}, {90, 2, 3}, 2, 2, 24, true, 0.2f, 200},  // no distance is that large
      {{70}, {70}, 1, 1, 16, true, 0, -1, 5},
      {{300, 5}, {300, 5}, 1, 3, 24, true, 0, -1, 1},
      {{200, 31}, {200, 31}, 2, 2, 64, true, 0.3f, -1, 64},
      {{260, 140}, {260, 140}, 1, 1, 8, true, 0, -1, 130},
      {{1, 10}, {150, 90}, 1, 4, 32, true, 0, -1, 40},
      {{40}, {33}, 1, 2, 8, true, 0, -1, 7},
      {{70, 3}, {9, 200}, 2, 1, 64, false, 0, -1, 0, true},
      {{40}, {33}, 1, 2, 8, true, 0, -1, 0, true},
      {{200, 31}, {200, 31}, 2, 2, 64, true, 0.3f, -1, 0, true},
      {{400}, {400}, 1, 1, 8, true, 0, -1, 130, true},
      {{90, 0, 3}, {90, 2, 3}, 2, 2, 24, true, 0.2f, 20, 30, true},
      // Values that are narrower and wider than keys.
      {{130, 3}, {130, 3}, 1, 3, 24, true, 0, -1, 0, false, 16},
      {{200, 31}, {200, 31}, 2, 2, 192, true, 0.3f, -1, 64, true, 128},
      {{70}, {70}, 2, 1, 12, false, 0.1f, 9, 0, false, 36},
      {{70, 3}, {9, 200}, 2, 1, 8, false, 0, -1, 0, true, 80},
      // Caps that most scores feel, and one that few feel.
      {{130, 3}, {130, 3}, 1, 3, 24, true, 0, -1, 0, false, 0, 0.7f},
      {{200, 31}, {200, 31}, 2, 2, 64, true, 0.3f, -1, 64, true, 0, 1.5f},
      {{40}, {33}, 1, 2, 8, true, 0, -1, 0, false, 0, 20},
      {{70, 3}, {9, 200}, 2, 1, 16, false, 0, -1, 0, false, 40, 1},
  };
}

class AttentionTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(AttentionTest, ForwardIsTheFormula) {
  for (const Sizes& setup : Cases()) {
    Problem p(setup, GetParam());
    const Reference want(p);
    p.Forward(&pool_);
    ExpectNear(p.out, want.out, OpTolerance(GetParam()));
    for (int64_t i = 0; i < p.lse.numel(); ++i) {
      if (std::isinf(want.lse[i])) {
        EXPECT_EQ(p.lse.Get(i), want.lse[i]);
      } else {
        EXPECT_NEAR(p.lse.Get(i), want.lse[i], 1e-5);
      }
    }
  }
}

// The model has three heads in front of those of the problem, and one behind them.
TEST_P(AttentionTest, ForwardFindsTheLargestScores) {
  for (const Sizes& setup : Cases()) {
    Problem p(setup, GetParam());
    const Reference want(p);
    const int64_t heads = setup.groups * setup.heads;
    HostTensor largest({3 + heads + 1}, DType::kFloat32);
    for (int64_t i = 0; i < largest.numel(); ++i) largest.Set(i, 0);
    p.attention.largest_scores_N = largest;
    p.Forward(&pool_);
    ExpectNear(p.out, want.out, OpTolerance(GetParam()));
    for (int64_t i = 0; i < heads; ++i)
      EXPECT_NEAR(largest.Get(3 + i), want.largest_scores[i], 1e-5) << "head " << i;
    for (int64_t other : {0, 1, 2, static_cast<int>(3 + heads)}) EXPECT_EQ(largest.Get(other), 0);
    // What is greater stays.
    largest.Set(3, 1e6);
    p.Forward(&pool_);
    EXPECT_EQ(largest.Get(3), 1e6);
  }
}

TEST_P(AttentionTest, BackwardIsTheFormula) {
  for (const Sizes& setup : Cases()) {
    Problem p(setup, GetParam());
    const Reference want(p);
    p.Forward(&pool_);
    p.Backward(&pool_);
    ExpectNear(p.dq, want.dq, 2 * OpTolerance(GetParam()));
    ExpectNear(p.dk, want.dk, 2 * OpTolerance(GetParam()));
    ExpectNear(p.dv, want.dv, 2 * OpTolerance(GetParam()));
    if (setup.bias_reach >= 0) ExpectNear(p.dbias, want.dbias, 4 * OpTolerance(GetParam()));
    if (setup.sinks) ExpectNear(p.dsink, want.dsink, 4 * OpTolerance(GetParam()));
  }
}

// The keys of one problem in parts that are passed one after another, in a different order. The
// positions say which query sees which key.
struct Parts {
  Problem whole;
  HostTensor q_place, out, dq, dk, dv;  // sums are fp32

  Parts(const Sizes& setup, DType dtype)
      : whole(setup, dtype),
        q_place(Places(whole.cu_q)),
        out(whole.OutShape(), DType::kFloat32),
        dq(whole.QShape(), DType::kFloat32),
        dk(whole.KShape(), DType::kFloat32),
        dv(whole.VShape(), DType::kFloat32) {}

  static HostTensor Places(const HostTensor& cu) {
    HostTensor places({Problem::Tokens(cu)}, DType::kInt32);
    for (int64_t s = 0; s + 1 < cu.numel(); ++s) {
      for (int64_t t = cu.Get(s); t < cu.Get(s + 1); ++t) places.Set(t, t - cu.Get(s));
    }
    return places;
  }

  // The keys of each sequence whose position modulo `parts` is `part`, with their operands.
  struct Part {
    HostTensor k, v, dk, dv, cu, place;
    std::vector<int64_t> token;  // indices in the whole batch
  };
  Part Take(int part, int parts) const {
    std::vector<double> k, v, cu = {0}, place;
    std::vector<int64_t> token;
    const int64_t k_width = whole.setup.groups * whole.setup.dim;
    const int64_t v_width = whole.setup.groups * whole.setup.values();
    for (int64_t s = 0; s + 1 < whole.cu_k.numel(); ++s) {
      for (int64_t u = whole.cu_k.Get(s); u < whole.cu_k.Get(s + 1); ++u) {
        const int64_t at = u - static_cast<int64_t>(whole.cu_k.Get(s));
        if (at % parts != part) continue;
        token.push_back(u);
        place.push_back(static_cast<double>(at));
        for (int64_t i = 0; i < k_width; ++i) k.push_back(whole.k.Get(u * k_width + i));
        for (int64_t i = 0; i < v_width; ++i) v.push_back(whole.v.Get(u * v_width + i));
      }
      cu.push_back(static_cast<double>(token.size()));
    }
    const int64_t count = static_cast<int64_t>(token.size());
    const Shape k_shape = {count, whole.setup.groups, whole.setup.dim};
    const Shape v_shape = {count, whole.setup.groups, whole.setup.values()};
    const DType dtype = whole.k.tensor().dtype();
    return {HostTensor::Of(k_shape, dtype, k),
            HostTensor::Of(v_shape, dtype, v),
            HostTensor(k_shape, DType::kFloat32),
            HostTensor(v_shape, DType::kFloat32),
            HostTensor::Of({static_cast<int64_t>(cu.size())}, DType::kInt32, cu),
            HostTensor::Of({count}, DType::kInt32, place),
            token};
  }

  // Forward over all parts, then backward over them.
  void Run(int parts, ThreadPool* pool) {
    const Stream stream = Stream::Cpu(pool);
    for (int part = 0; part < parts; ++part) {
      const Part keys = Take(part, parts);
      AttentionForward(stream, OfPart(keys, part), InputsOf(keys, part, parts), out, whole.lse);
    }
    for (int64_t i = 0; i < out.numel(); ++i) whole.out.Set(i, out.Get(i));
    for (int part = 0; part < parts; ++part) {
      const Part keys = Take(part, parts);
      Attention attention = OfPart(keys, part);
      attention.add_to_keys = part % 2 == 0;  // the sum starts at zero, so both are the same
      const AttentionInputs in = InputsOf(keys, part, parts);
      AttentionBackward(stream, attention, in, whole.out, whole.lse, whole.dout,
                        {dq, keys.dk, keys.dv, whole.IfBiased(whole.dbias),
                         in.sink_N ? Tensor(whole.dsink) : Tensor()});
      const auto put = [&](const HostTensor& part, int64_t width, HostTensor* whole_gradient) {
        for (size_t j = 0; j < keys.token.size(); ++j) {
          for (int64_t i = 0; i < width; ++i)
            whole_gradient->Set(keys.token[j] * width + i, part.Get(j * width + i));
        }
      };
      put(keys.dk, whole.setup.groups * whole.setup.dim, &dk);
      put(keys.dv, whole.setup.groups * whole.setup.values(), &dv);
    }
  }

  // Sinks come with a part in the middle.
  AttentionInputs InputsOf(const Part& keys, int part, int parts) const {
    return {whole.q, keys.k, keys.v, whole.IfBiased(whole.bias),
            part == parts / 2 ? whole.IfSinks(whole.sink) : Tensor()};
  }

  Attention OfPart(const Part& keys, int part) const {
    Attention attention = whole.attention;
    attention.cu_seqlens_k = keys.cu;
    attention.place_q_T = q_place;
    attention.place_k_U = keys.place;
    attention.add_to_queries = part > 0;
    return attention;
  }
};

// Cases with the usual causal triangle, whose distances are counted from the beginnings of
// sequences; positions describe these.
std::vector<Sizes> WholeSequences() {
  std::vector<Sizes> cases;
  for (const Sizes& setup : Cases()) {
    const bool any_lengths = !setup.causal && setup.bias_reach < 0;
    if (any_lengths || setup.q_lengths == setup.k_lengths) cases.push_back(setup);
  }
  return cases;
}

TEST_P(AttentionTest, KeysMayComeInParts) {
  for (const Sizes& setup : WholeSequences()) {
    for (int parts : {1, 2, 3}) {
      Parts p(setup, GetParam());
      const Reference want(p.whole);
      p.Run(parts, &pool_);
      ExpectNear(p.out, want.out, OpTolerance(DType::kFloat32));
      for (int64_t i = 0; i < p.whole.lse.numel(); ++i) {
        if (std::isinf(want.lse[i])) {
          EXPECT_EQ(p.whole.lse.Get(i), want.lse[i]);
        } else {
          EXPECT_NEAR(p.whole.lse.Get(i), want.lse[i], 1e-5);
        }
      }
      ExpectNear(p.dq, want.dq, 2 * OpTolerance(GetParam()));
      ExpectNear(p.dk, want.dk, 2 * OpTolerance(GetParam()));
      ExpectNear(p.dv, want.dv, 2 * OpTolerance(GetParam()));
      if (setup.bias_reach >= 0) ExpectNear(p.whole.dbias, want.dbias, 4 * OpTolerance(GetParam()));
      if (setup.sinks) ExpectNear(p.whole.dsink, want.dsink, 4 * OpTolerance(GetParam()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(AttentionGradientTest, GradientsAreFiniteDifferences) {
  ThreadPool pool(1);
  for (const Sizes& setup : {Sizes{{5, 3}, {5, 3}, 1, 2, 8}, Sizes{{4}, {7}, 2, 1, 8, true, 0.25f},
                             Sizes{{5, 3}, {5, 3}, 1, 2, 12, true, 0, -1, 0, false, 5}}) {
    Problem p(setup, DType::kFloat32);
    p.Forward(&pool);
    p.Backward(&pool);
    const auto loss = [&] {
      p.Forward(&pool);
      return Dot(p.out, p.dout);
    };
    ExpectNear(p.dq, FiniteDifference(&p.q, loss), kFiniteDifferenceTolerance);
    ExpectNear(p.dk, FiniteDifference(&p.k, loss), kFiniteDifferenceTolerance);
    ExpectNear(p.dv, FiniteDifference(&p.v, loss), kFiniteDifferenceTolerance);
  }
}

TEST(AttentionGradientTest, GradientsOfTheBiasAreFiniteDifferencesAndAreAdded) {
  ThreadPool pool(2);
  for (const Sizes& setup :
       {Sizes{{9, 4}, {9, 4}, 2, 1, 8, false, 0, 3}, Sizes{{6}, {6}, 1, 2, 8, true, 0.25f, 5}}) {
    Problem p(setup, DType::kFloat32);
    p.Forward(&pool);
    for (int64_t i = 0; i < p.dbias.numel(); ++i) p.dbias.Set(i, 1);
    p.Backward(&pool);
    const auto loss = [&] {
      p.Forward(&pool);
      return Dot(p.out, p.dout);
    };
    std::vector<double> want = FiniteDifference(&p.bias, loss);
    for (double& x : want) x += 1;
    ExpectNear(p.dbias, want, kFiniteDifferenceTolerance);
    ExpectNear(p.dq, FiniteDifference(&p.q, loss), kFiniteDifferenceTolerance);
    ExpectNear(p.dk, FiniteDifference(&p.k, loss), kFiniteDifferenceTolerance);
  }
}

TEST(AttentionGradientTest, GradientsInWindowsOfSinksAndOfCapsAreFiniteDifferences) {
  ThreadPool pool(2);
  for (const Sizes& setup : {Sizes{{9, 4}, {9, 4}, 2, 1, 8, true, 0, -1, 3},
                             Sizes{{9}, {9}, 1, 2, 8, true, 0, -1, 0, true},
                             Sizes{{4, 9}, {4, 9}, 2, 2, 8, true, 0.25f, -1, 2, true},
                             Sizes{{4}, {7}, 2, 1, 8, false, 0, -1, 0, true},
                             Sizes{{9, 4}, {9, 4}, 2, 1, 8, true, 0.25f, -1, 3, false, 0, 1}}) {
    Problem p(setup, DType::kFloat32);
    p.Forward(&pool);
    for (int64_t i = 0; i < p.dsink.numel(); ++i) p.dsink.Set(i, 1);
    p.Backward(&pool);
    const auto loss = [&] {
      p.Forward(&pool);
      return Dot(p.out, p.dout);
    };
    ExpectNear(p.dq, FiniteDifference(&p.q, loss), kFiniteDifferenceTolerance);
    ExpectNear(p.dk, FiniteDifference(&p.k, loss), kFiniteDifferenceTolerance);
    ExpectNear(p.dv, FiniteDifference(&p.v, loss), kFiniteDifferenceTolerance);
    std::vector<double> dsink = FiniteDifference(&p.sink, loss);
    for (double& x : dsink) x += 1;
    ExpectNear(p.dsink, dsink, kFiniteDifferenceTolerance);
  }
}

TEST(AttentionGradientTest, GradientsOfKeysInPartsAreFiniteDifferences) {
  ThreadPool pool(1);
  for (const Sizes& setup : {Sizes{{5, 3}, {5, 3}, 1, 2, 8}, Sizes{{6}, {6}, 2, 1, 8, true, 0.25f},
                             Sizes{{4}, {7}, 2, 1, 8, false, 0.25f}}) {
    Parts p(setup, DType::kFloat32);
    const auto loss = [&] {
      p.Run(2, &pool);
      return Dot(p.out, p.whole.dout);
    };
    const std::vector<double> dq = FiniteDifference(&p.whole.q, loss),
                              dk = FiniteDifference(&p.whole.k, loss),
                              dv = FiniteDifference(&p.whole.v, loss);
    loss();  // writes the gradients without a difference
    ExpectNear(p.dq, dq, kFiniteDifferenceTolerance);
    ExpectNear(p.dk, dk, kFiniteDifferenceTolerance);
    ExpectNear(p.dv, dv, kFiniteDifferenceTolerance);
  }
}

TEST(AttentionBitsTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Sizes& setup : {Sizes{{300}, {300}, 1, 2, 24, true, 0.1f},    // split by blocks
                             Sizes{{90, 5, 130}, {90, 5, 130}, 3, 1, 64},  // not split
                             Sizes{{300}, {300}, 1, 2, 24, true, 0, 40},
                             Sizes{{500}, {500}, 1, 2, 24, true, 0.1f, -1, 70, true},
                             Sizes{{90, 5, 130}, {90, 5, 130}, 3, 1, 64, true, 0, -1, 33, true},
                             Sizes{{90, 5, 130}, {90, 5, 130}, 3, 1, 64, false, 0.1f, 7},
                             Sizes{{300}, {300}, 1, 2, 24, true, 0.1f, -1, 0, true, 40},
                             Sizes{{300}, {300}, 1, 2, 24, true, 0.1f, -1, 0, false, 0, 2},
                             Sizes{{150, 20}, {99, 260}, 2, 1, 16, false}}) {
    ThreadPool one(1);
    Problem want(setup, DType::kFloat32);
    want.Forward(&one);
    want.Backward(&one);
    for (int threads : {2, 3, 7, 16}) {
      ThreadPool pool(threads);
      Problem got(setup, DType::kFloat32);
      got.Forward(&pool);
      got.Backward(&pool);
      EXPECT_EQ(got.out.Bytes(), want.out.Bytes()) << threads;
      EXPECT_EQ(got.lse.Bytes(), want.lse.Bytes()) << threads;
      EXPECT_EQ(got.dq.Bytes(), want.dq.Bytes()) << threads;
      EXPECT_EQ(got.dk.Bytes(), want.dk.Bytes()) << threads;
      EXPECT_EQ(got.dv.Bytes(), want.dv.Bytes()) << threads;
      EXPECT_EQ(got.dbias.Bytes(), want.dbias.Bytes()) << threads;
      EXPECT_EQ(got.dsink.Bytes(), want.dsink.Bytes()) << threads;
    }
  }
}

// Runs sequence `s` of the problem alone, on its part of every operand.
void RunAlone(Problem* p, int s, ThreadPool* pool) {
  const int64_t q0 = p->cu_q.Get(s), q1 = p->cu_q.Get(s + 1), k0 = p->cu_k.Get(s),
                k1 = p->cu_k.Get(s + 1);
  const auto queries = [&](const Tensor& x) { return x.Slice(0, q0, q1); };
  const auto keys = [&](const Tensor& x) { return x.Slice(0, k0, k1); };
  const HostTensor cu_q = CumulativeLengths({static_cast<int>(q1 - q0)});
  const HostTensor cu_k = CumulativeLengths({static_cast<int>(k1 - k0)});
  Attention attention = p->attention;
  attention.cu_seqlens_q = cu_q;
  attention.cu_seqlens_k = cu_k;
  attention.dropout.sample_T = queries(attention.dropout.sample_T);
  attention.dropout.position_T = queries(attention.dropout.position_T);
  const AttentionInputs in = {queries(p->q), keys(p->k), keys(p->v)};
  const Stream stream = Stream::Cpu(pool);
  AttentionForward(stream, attention, in, queries(p->out), queries(p->lse));
  AttentionBackward(stream, attention, in, queries(p->out), queries(p->lse), queries(p->dout),
                    {queries(p->dq), keys(p->dk), keys(p->dv)});
}

TEST(AttentionBitsTest, BitsOfADocumentAreThoseOfTheDocumentAlone) {
  ThreadPool pool(2);
  // In the second one some continue with few rows: a thread takes several of their groups.
  for (const Sizes& setup :
       std::vector<Sizes>{{{70, 1, 33, 129}, {70, 1, 33, 129}, 2, 2, 16, true, 0.2f},
                          {{1, 33, 2, 1}, {70, 150, 2, 129}, 5, 2, 16, true}}) {
    Problem packed(setup, DType::kBFloat16), alone(setup, DType::kBFloat16);
    packed.Forward(&pool);
    packed.Backward(&pool);
    for (int s = 0; s < 4; ++s) RunAlone(&alone, s, &pool);
    EXPECT_EQ(packed.out.Bytes(), alone.out.Bytes());
    EXPECT_EQ(packed.lse.Bytes(), alone.lse.Bytes());
    EXPECT_EQ(packed.dq.Bytes(), alone.dq.Bytes());
    EXPECT_EQ(packed.dk.Bytes(), alone.dk.Bytes());
    EXPECT_EQ(packed.dv.Bytes(), alone.dv.Bytes());
  }
}

TEST(AttentionBitsTest, BitsOfAHeadDoNotDependOnTheRankThatHoldsIt) {
  ThreadPool pool(2);
  Sizes setup = {{100}, {100}, 4, 1, 16, true, 0.2f};
  Problem whole(setup, DType::kFloat32), cut(setup, DType::kFloat32);
  whole.Forward(&pool);
  whole.Backward(&pool);
  for (int64_t g = 0; g < 4; g += 2) {
    const auto part = [&](const Tensor& x) { return x.Slice(1, g, g + 2); };
    Attention attention = cut.attention;
    attention.dropout.first_column += g;
    const AttentionInputs in = {part(cut.q), part(cut.k), part(cut.v)};
    AttentionForward(Stream::Cpu(&pool), attention, in, part(cut.out), part(cut.lse));
    AttentionBackward(Stream::Cpu(&pool), attention, in, part(cut.out), part(cut.lse),
                      part(cut.dout), {part(cut.dq), part(cut.dk), part(cut.dv)});
  }
  EXPECT_EQ(whole.out.Bytes(), cut.out.Bytes());
  EXPECT_EQ(whole.lse.Bytes(), cut.lse.Bytes());
  EXPECT_EQ(whole.dq.Bytes(), cut.dq.Bytes());
  EXPECT_EQ(whole.dk.Bytes(), cut.dk.Bytes());
  EXPECT_EQ(whole.dv.Bytes(), cut.dv.Bytes());
}

// The newest tokens of a text take another way through the kernel than those of a whole text.
TEST(AttentionBitsTest, BitsOfFewRowsAreThoseOfMany) {
  ThreadPool pool(1);
  constexpr int kTokens = 150;
  struct Case {
    int heads, dim, value_dim, window;
    bool sinks;
  };
  for (const Case& each : std::vector<Case>{{1, 64, 64, 0, false},
                                            {1, 80, 96, 0, false},
                                            {2, 44, 128, 30, false},
                                            {2, 20, 36, 0, true},
                                            {4, 16, 48, 40, false},
                                            {3, 8, 8, 70, true}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Sizes all;
      all.q_lengths = all.k_lengths = {kTokens};
      all.groups = 3;
      all.heads = each.heads;
      all.dim = each.dim;
      all.value_dim = each.value_dim;
      all.window = each.window;
      all.sinks = each.sinks;
      Problem whole(all, dtype);
      whole.Forward(&pool);
      for (int few = 1; few * each.heads <= 4; ++few) {
        Sizes last = all;
        last.q_lengths = {few};
        Problem part(last, dtype);
        const int64_t before = whole.q.numel() - part.q.numel();
        for (int64_t i = 0; i < part.q.numel(); ++i) part.q.Set(i, whole.q.Get(before + i));
        part.Forward(&pool);
        for (int64_t i = 0; i < part.out.numel(); ++i) {
          ASSERT_EQ(part.out.Get(i), whole.out.Get(whole.out.numel() - part.out.numel() + i))
              << each.heads << " heads of " << each.dim << ", " << few << " tokens, " << i;
        }
        for (int64_t i = 0; i < part.lse.numel(); ++i)
          ASSERT_EQ(part.lse.Get(i), whole.lse.Get(whole.lse.numel() - part.lse.numel() + i)) << i;
      }
    }
  }
}

TEST(AttentionBitsTest, AWindowOfAllPositionsChangesNoBit) {
  ThreadPool pool(2);
  const Sizes setup = {{300, 17}, {300, 17}, 1, 2, 24, true, 0.1f};
  Sizes windowed = setup;
  windowed.window = 299;
  Problem want(setup, DType::kFloat32), got(windowed, DType::kFloat32);
  for (Problem* p : {&want, &got}) {
    p->Forward(&pool);
    p->Backward(&pool);
  }
  EXPECT_EQ(got.out.Bytes(), want.out.Bytes());
  EXPECT_EQ(got.lse.Bytes(), want.lse.Bytes());
  EXPECT_EQ(got.dq.Bytes(), want.dq.Bytes());
  EXPECT_EQ(got.dk.Bytes(), want.dk.Bytes());
  EXPECT_EQ(got.dv.Bytes(), want.dv.Bytes());
}

TEST(AttentionDropoutTest, PreservesTheMean) {
  ThreadPool pool(2);
  Problem p({{400}, {400}, 2, 1, 8, false, 0.25f}, DType::kFloat32);
  for (int64_t i = 0; i < p.v.numel(); ++i) p.v.Set(i, 1);
  p.Forward(&pool);
  double mean = 0;
  for (double x : p.out.Values()) mean += x / p.out.numel();
  // 320,000 independent draws of weight about 1/400 each.
  EXPECT_NEAR(mean, 1, 0.005);
}

TEST(AttentionEdgesTest, ScoresOfAnyMagnitudeAreFine) {
  ThreadPool pool(1);
  Problem p({{150}, {150}, 1, 1, 8}, DType::kFloat32);
  for (int64_t i = 0; i < p.q.numel(); ++i) p.q.Set(i, p.q.Get(i) * 1e4);
  const Reference want(p);
  p.Forward(&pool);
  p.Backward(&pool);
  // Scores reach 1e5 where fp32 has steps of 0.01.
  ExpectNear(p.out, want.out, 0.03);
  for (double x : p.dq.Values()) ASSERT_TRUE(std::isfinite(x));
}

TEST(AttentionEdgesTest, AWindowMayHaveLeftAllKeysBehind) {
  ThreadPool pool(1);
  Sizes setup;
  setup.q_lengths = {1};
  setup.k_lengths = {32};
  setup.window = 5;
  Problem p(setup, DType::kFloat32);
  const HostTensor place_q = HostTensor::Of({1}, DType::kInt32, {100});
  const HostTensor place_k = HostTensor::Of({32}, DType::kInt32, std::vector<double>(32, 3));
  p.attention.place_q_T = place_q;
  p.attention.place_k_U = place_k;
  p.Forward(&pool);
  for (int64_t i = 0; i < p.out.numel(); ++i) EXPECT_EQ(p.out.Get(i), 0);
  EXPECT_EQ(p.lse.Get(0), -std::numeric_limits<double>::infinity());
}

TEST(AttentionEdgesTest, NotANumberComesThrough) {
  ThreadPool pool(1);
  Problem p({{20}, {20}, 1, 1, 8}, DType::kFloat32);
  p.k.Set(3 * 8, std::nan(""));
  p.Forward(&pool);
  EXPECT_TRUE(std::isfinite(p.out.Get(2 * 8)));
  EXPECT_TRUE(std::isnan(p.out.Get(3 * 8)));
}

TEST(AttentionEdgesTest, RunsInPlaceOfViewsIntoOnePackedProjection) {
  ThreadPool pool(2);
  const Sizes setup = {{50, 30}, {50, 30}, 2, 3, 16};
  Problem p(setup, DType::kFloat32);
  p.Forward(&pool);
  p.Backward(&pool);
  const HostTensor packed({80, 2, 5, 16}, DType::kFloat32),
      gradient({80, 2, 5, 16}, DType::kFloat32);
  const auto views = [](const Tensor& x) -> AttentionInputs {
    return {x.Slice(2, 0, 3), x.Select(2, 3), x.Select(2, 4)};
  };
  float* to = packed.tensor().data<float>();
  for (int64_t tg = 0; tg < 160; ++tg) {
    for (int64_t i = 0; i < 48; ++i) *to++ = p.q.Get(tg * 48 + i);
    for (int64_t i = 0; i < 16; ++i) *to++ = p.k.Get(tg * 16 + i);
    for (int64_t i = 0; i < 16; ++i) *to++ = p.v.Get(tg * 16 + i);
  }
  const HostTensor out(p.QShape(), DType::kFloat32);
  AttentionForward(Stream::Cpu(&pool), p.attention, views(packed), out, p.lse);
  AttentionBackward(Stream::Cpu(&pool), p.attention, views(packed), out, p.lse, p.dout,
                    views(gradient));
  EXPECT_EQ(out.Bytes(), p.out.Bytes());
  const float* from = gradient.tensor().data<float>();
  for (int64_t tg = 0; tg < 160; ++tg) {
    for (int64_t i = 0; i < 48; ++i) ASSERT_EQ(*from++, p.dq.Get(tg * 48 + i));
    for (int64_t i = 0; i < 16; ++i) ASSERT_EQ(*from++, p.dk.Get(tg * 16 + i));
    for (int64_t i = 0; i < 16; ++i) ASSERT_EQ(*from++, p.dv.Get(tg * 16 + i));
  }
}

TEST(AttentionEdgesTest, SteadyStateAllocatesNothing) {
  ThreadPool pool(1);
  Problem p({{100, 30}, {100, 30}, 2, 2, 64, true, 0.1f}, DType::kBFloat16);
  p.Forward(&pool);
  p.Backward(&pool);
  const int64_t before = AllocationCount();
  p.Forward(&pool);
  p.Backward(&pool);
  EXPECT_EQ(AllocationCount(), before);
}

TEST(AttentionEdgesTest, OnMetaShapesAreCheckedAndNothingRuns) {
  const Device meta = {DeviceType::kMeta, 0};
  const Tensor q(nullptr, DType::kBFloat16, {6, 2, 1, 8}, meta),
      k(nullptr, DType::kBFloat16, {6, 2, 8}, meta);
  const Tensor lse(nullptr, DType::kFloat32, {6, 2, 1}, meta),
      cu(nullptr, DType::kInt32, {2}, meta);
  Attention attention;
  attention.cu_seqlens_q = attention.cu_seqlens_k = cu;
  AttentionForward(Stream::Meta(), attention, {q, k, k}, q, lse);
  AttentionBackward(Stream::Meta(), attention, {q, k, k}, q, lse, q, {q, k, k});
  EXPECT_DEATH(AttentionForward(Stream::Meta(), attention, {q, k, q}, q, lse), "");
}

}  // namespace
}  // namespace megatron::ops
