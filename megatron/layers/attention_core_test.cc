// Context-parallel ranks against one rank that has all tokens: results, memory, messages.

#include "megatron/layers/attention_core.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/context_slice.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

MicroBatch Slice(const MicroBatch& whole, const ContextShard& shard, const Buffer& memory) {
  const MicroBatch slice = PlaceContextSlice(whole, shard, memory, 0);
  FillContextSlice(whole, shard, slice);
  return slice;
}

using ::megatron::ops::HostTensor;

struct Case {
  int64_t sample_length = 16;           // 0: each sequence is a sample
  std::vector<int> lengths = {16, 16};  // lengths of the sequences
  int64_t groups = 4, heads = 1, head_size = 8;
  bool causal = true;
  float dropout = 0;
  DType dtype = DType::kFloat32;
  std::vector<int> encoder_lengths = {};  // set: keys are those of an encoder's sequences
  int64_t bias_reach = -1;                // < 0: no bias
  int64_t window = 0;                     // 0: none
  bool sinks = false;
  int64_t value_size = 0;  // 0: head_size

  int64_t values() const { return value_size > 0 ? value_size : head_size; }
  bool cross() const { return !encoder_lengths.empty(); }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t keys() const {
    return cross() ? std::accumulate(encoder_lengths.begin(), encoder_lengths.end(), int64_t{0})
                   : tokens();
  }
};

// The tensors of one rank, of a context group or alone.
struct Operands {
  HostTensor q, k, v, bias, sink, out, dout, dq, dk, dv, dbias, dsink;

  Operands(const Case& c, int ranks)
      : q({c.tokens() / ranks, c.groups, c.heads, c.head_size}, c.dtype),
        k({c.keys() / ranks, c.groups, c.head_size}, c.dtype),
        v({c.keys() / ranks, c.groups, c.values()}, c.dtype),
        bias(HostTensor::Normal({2 * std::max<int64_t>(c.bias_reach, 0) + 1, c.groups * c.heads},
                                DType::kFloat32, 5)),
        sink(HostTensor::Normal({c.groups * c.heads}, c.dtype, 6)),
        out({c.tokens() / ranks, c.groups, c.heads, c.values()}, c.dtype),
        dout(out.tensor().shape(), c.dtype),
        dq(q.tensor().shape(), c.dtype),
        dk(k.tensor().shape(), c.dtype),
        dv(v.tensor().shape(), c.dtype),
        dbias(bias.tensor().shape(), DType::kFloat32),
        dsink(sink.tensor().shape(), DType::kFloat32) {}
};

struct Measured {
  int64_t saved = 0, scratch = 0;
  int64_t forward_bytes[2] = {}, backward_bytes[2] = {};  // first and second kind of message
};

constexpr Collective kFirst[] = {Collective::kExchange, Collective::kAllToAll,
                                 Collective::kAllGather, Collective::kExchange};

int TeamSize(ContextParallel kind, int size) {
  TransformerOptions options;
  options.context_parallel = kind;
  options.context_team_size = 2;
  return options.TeamSize(size);
}

// Packed tokens: which sample and sequence each is of, and where in it.
struct Tokens {
  HostTensor sample, position, cu_seqlens;
  int64_t longest;

  Tokens(int64_t sample_length, const std::vector<int>& lengths)
      : sample({std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}, DType::kInt64),
        position(sample.tensor().shape(), DType::kInt32),
        cu_seqlens({static_cast<int64_t>(lengths.size()) + 1}, DType::kInt32),
        longest(lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end())) {
    int64_t token = 0, number = 1000, place = 0;
    const auto next_sample = [&] {
      ++number;
      place = 0;
    };
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (const int64_t end = token + lengths[s]; token < end; ++token) {
        sample.Set(token, static_cast<double>(number));
        position.Set(token, static_cast<double>(place));
        if (++place == sample_length) next_sample();
      }
      if (sample_length == 0) next_sample();
      cu_seqlens.Set(s + 1, static_cast<double>(token));
    }
  }
};

class Experiment {
 public:
  explicit Experiment(const Case& c)
      : case_(c),
        whole_(c, 1),
        tokens_(c.sample_length, c.lengths),
        encoder_tokens_(c.sample_length, c.encoder_lengths) {
    const auto fill = [&](HostTensor* x, uint32_t seed) {
      *x = HostTensor::Normal(x->tensor().shape(), c.dtype, seed);
    };
    fill(&whole_.q, 1);
    fill(&whole_.k, 2);
    fill(&whole_.v, 3);
    fill(&whole_.dout, 4);
    batch_.tokens_T = batch_.sample_position_T = tokens_.position;
    batch_.sample_T = tokens_.sample;
    batch_.cu_seqlens = tokens_.cu_seqlens;
    batch_.max_seqlen = tokens_.longest;
    if (c.cross()) {
      EncoderBatch& encoder = batch_.encoder;
      encoder.tokens_T = encoder.position_T = encoder.sample_position_T = encoder_tokens_.position;
      encoder.sample_T = encoder_tokens_.sample;
      encoder.cu_seqlens = encoder_tokens_.cu_seqlens;
      encoder.max_seqlen = encoder_tokens_.longest;
    }
    Run(batch_, ContextParallel::kRing, ProcessGroup(), &whole_, nullptr);
  }

  const Operands& whole() const { return whole_; }

  // Ranks communicate beside computing, or in turn with it.
  void set_beside(bool beside) { beside_ = beside; }

  // Returns the results of all ranks of `size`, put together.
  Operands OnRanks(int size, ContextParallel kind, Measured* measured = nullptr) {
    Operands gathered(case_, 1);
    std::vector<Operands> parts;
    for (int rank = 0; rank < size; ++rank) parts.emplace_back(case_, size);
    const absl::Status status = RunRanks(size, [&](int rank, const ProcessGroup& world) {
      const ContextSliceSize room = {case_.tokens(), 0, case_.cross() ? case_.keys() : 0};
      const ContextShard shard = {size, rank, case_.sample_length, TeamSize(kind, size)};
      const Buffer memory({}, ContextSliceBytes(room, shard), "slice", nullptr);
      const MicroBatch mine = Slice(batch_, shard, memory);
      const auto move = [&](const HostTensor& all, const HostTensor& part, bool take) {
        const int64_t rows = all.tensor().dim(0), row = all.tensor().bytes() / rows;
        ForEachContextChunk(size, rank, rows, case_.sample_length, [&](const ContextChunk& chunk) {
          char* a = static_cast<char*>(all.tensor().raw()) + chunk.whole_begin * row;
          char* b = static_cast<char*>(part.tensor().raw()) + chunk.local_begin * row;
          take ? std::memcpy(b, a, chunk.length * row) : std::memcpy(a, b, chunk.length * row);
        });
      };
      Operands& operands = parts[rank];
      move(whole_.q, operands.q, true);
      move(whole_.k, operands.k, true);
      move(whole_.v, operands.v, true);
      move(whole_.dout, operands.dout, true);
      Run(mine, kind, world, &operands, rank == size - 1 ? measured : nullptr);
      move(gathered.out, operands.out, false);
      move(gathered.dq, operands.dq, false);
      move(gathered.dk, operands.dk, false);
      move(gathered.dv, operands.dv, false);
      return world.status();
    });
    EXPECT_TRUE(status.ok()) << status;
    for (const Operands& part : parts) {
      for (int64_t i = 0; i < part.dbias.numel(); ++i)
        gathered.dbias.Set(i, gathered.dbias.Get(i) + part.dbias.Get(i));
      for (int64_t i = 0; i < part.dsink.numel(); ++i)
        gathered.dsink.Set(i, gathered.dsink.Get(i) + part.dsink.Get(i));
    }
    return gathered;
  }

 private:
  void Run(const MicroBatch& batch, ContextParallel kind, const ProcessGroup& group, Operands* x,
           Measured* measured) const {
    ThreadPool pool(1);
    Arena saved({}, 1 << 23, "saved", nullptr), scratch({}, 1 << 23, "scratch", nullptr);
    LayerContext ctx{ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, &batch, /*seed=*/9};
    BytesSent sent;
    if (group.size() > 1) ctx.context_group = ProcessGroup(Counted(group.communicator(), &sent));
    if (beside_) ctx.context_group = *WithAsyncCalls(ctx.context_group, ctx.stream);
    AttentionCoreOptions options;
    options.layer = 3;
    options.first_head = 5;
    options.head_size = case_.head_size;
    options.dropout = case_.dropout;
    options.causal = case_.causal;
    options.window_size = case_.window;
    options.cross = case_.cross();
    options.gathers_keys = kind == ContextParallel::kGather;
    const AttentionCore core(options);
    const auto if_biased = [&](const HostTensor& bias) {
      return case_.bias_reach < 0 ? Tensor() : bias.tensor();
    };
    const auto if_sinks = [&](const HostTensor& sink) {
      return case_.sinks ? sink.tensor() : Tensor();
    };
    const ops::AttentionInputs in = {x->q, x->k, x->v, if_biased(x->bias), if_sinks(x->sink)};
    AttentionCore::Saved kept;
    core.Forward(ctx, &saved, in, x->out, &kept);
    const auto count = [&](int64_t* bytes) {
      bytes[0] = sent.Of("", kFirst[static_cast<int>(kind)]);
      bytes[1] = sent.Of("", Collective::kReduceScatter);
      sent.Reset();
    };
    if (measured != nullptr) count(measured->forward_bytes);
    core.Backward(ctx, in, x->out, x->dout,
                  {x->dq, x->dk, x->dv, if_biased(x->dbias), if_sinks(x->dsink)}, kept);
    if (measured == nullptr) return;
    count(measured->backward_bytes);
    measured->saved = saved.high_water();
    measured->scratch = scratch.high_water();
  }

  Case case_;
  Operands whole_;
  Tokens tokens_, encoder_tokens_;
  MicroBatch batch_;
  bool beside_ = false;
};

std::vector<Case> Cases() {
  return {
      {16, {16, 16}, 4, 1, 8, true, 0},
      {16, {16}, 4, 2, 8, false, 0},
      {16, {5, 1, 10, 3, 13}, 4, 1, 8, true, 0.2f},  // documents that begin anywhere
      {32, {32, 8, 8, 16}, 4, 3, 16, true, 0.2f},    // and at chunks
      {16, {1, 2, 13, 16}, 4, 1, 8, false, 0.2f},
      {16, {4, 12, 16}, 8, 1, 8, true, 0.1f, DType::kBFloat16},
      {256, {100, 156, 256}, 4, 1, 32, true, 0.1f},  // many tiles of the kernels
      {0, {11, 5, 16}, 4, 1, 8, false, 0},           // samples of any length
      {0, {3, 1, 21, 7}, 4, 2, 8, false, 0.2f},
      {0, {13, 2, 17}, 4, 1, 8, true, 0.2f},
      {0, {200, 90, 222}, 4, 1, 32, false, 0.1f, DType::kBFloat16},
      {0, {11, 5, 16}, 4, 1, 8, false, 0.2f, DType::kFloat32, {}, 6},  // biased by distance
      {0, {13, 2, 17}, 4, 2, 8, true, 0, DType::kFloat32, {}, 4},
      {16, {16, 16}, 4, 1, 8, true, 0.1f, DType::kFloat32, {}, 5},
      {0, {11, 5, 16}, 4, 1, 8, false, 0, DType::kFloat32, {20, 3, 41}},  // cross-attention
      {0, {3, 1, 21, 7}, 8, 1, 8, false, 0.2f, DType::kFloat32, {1, 40, 2, 21}},
      {0, {200, 90, 222}, 4, 2, 32, false, 0.1f, DType::kBFloat16, {31, 260, 29}},
      // Twelve groups are odd shares of a rank of four.
      {16, {5, 1, 10, 3, 13}, 12, 2, 8, true, 0.2f},
      {0, {13, 2, 17}, 12, 1, 8, true, 0.1f, DType::kBFloat16, {}, 4},
      // Windows and sinks.
      {16, {5, 1, 10, 3, 13}, 4, 2, 8, true, 0.2f, DType::kFloat32, {}, -1, 3},
      {256, {100, 156, 256}, 4, 1, 32, true, 0.1f, DType::kFloat32, {}, -1, 70, true},
      {0, {13, 2, 17}, 12, 2, 8, true, 0.2f, DType::kFloat32, {}, 4, 6, true},
      {0, {3, 1, 21, 7}, 4, 2, 8, false, 0, DType::kFloat32, {}, -1, 0, true},
      {0, {200, 90, 222}, 8, 1, 32, true, 0.1f, DType::kBFloat16, {}, -1, 50, true},
      // Values that are narrower and wider than keys.
      {16, {5, 1, 10, 3, 13}, 4, 2, 12, true, 0.2f, DType::kFloat32, {}, -1, 0, false, 8},
      {256, {100, 156, 256}, 4, 1, 24, true, 0.1f, DType::kFloat32, {}, -1, 0, true, 16},
      {0, {13, 2, 17}, 12, 1, 8, true, 0.1f, DType::kBFloat16, {}, 4, 6, false, 20},
  };
}

class AttentionCoreTest : public testing::TestWithParam<ContextParallel> {};

void ExpectNear(const HostTensor& got, const HostTensor& want, double tolerance, const char* what) {
  for (int64_t i = 0; i < got.numel(); ++i)
    ASSERT_NEAR(got.Get(i), want.Get(i), tolerance * std::max(1.0, std::fabs(want.Get(i))))
        << what << " " << i;
}

TEST_P(AttentionCoreTest, RanksThatShareSequencesGiveWhatOneRankGives) {
  for (const Case& c : Cases()) {
    Experiment attention(c);
    const Operands& want = attention.whole();
    const bool in_teams = GetParam() == ContextParallel::kHierarchical;
    for (int size : in_teams ? std::vector<int>{4, 8} : std::vector<int>{2, 4}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, " << c.tokens() << " tokens");
      const Operands got = attention.OnRanks(size, GetParam());
      const double tolerance = c.dtype == DType::kFloat32 ? 3e-6 : 2e-2;
      ExpectNear(got.out, want.out, tolerance, "out");
      ExpectNear(got.dq, want.dq, tolerance, "dq");
      ExpectNear(got.dk, want.dk, tolerance, "dk");
      ExpectNear(got.dv, want.dv, tolerance, "dv");
      ExpectNear(got.dbias, want.dbias, 2 * tolerance, "dbias");
      ExpectNear(got.dsink, want.dsink, 2 * tolerance, "dsink");
    }
  }
}

TEST_P(AttentionCoreTest, GivesTheSameBitsEveryTime) {
  Experiment attention(Cases()[3]);
  const Operands a = attention.OnRanks(4, GetParam()), b = attention.OnRanks(4, GetParam());
  EXPECT_EQ(a.out.Bytes(), b.out.Bytes());
  EXPECT_EQ(a.dq.Bytes(), b.dq.Bytes());
  EXPECT_EQ(a.dk.Bytes(), b.dk.Bytes());
  EXPECT_EQ(a.dv.Bytes(), b.dv.Bytes());
}

TEST_P(AttentionCoreTest, CommunicationBesideComputingGivesTheSameBits) {
  for (const Case& c : Cases()) {
    Experiment attention(c);
    const Operands in_turn = attention.OnRanks(4, GetParam());
    attention.set_beside(true);
    const Operands beside = attention.OnRanks(4, GetParam());
    EXPECT_EQ(beside.out.Bytes(), in_turn.out.Bytes());
    EXPECT_EQ(beside.dq.Bytes(), in_turn.dq.Bytes());
    EXPECT_EQ(beside.dk.Bytes(), in_turn.dk.Bytes());
    EXPECT_EQ(beside.dv.Bytes(), in_turn.dv.Bytes());
    EXPECT_EQ(beside.dbias.Bytes(), in_turn.dbias.Bytes());
    EXPECT_EQ(beside.dsink.Bytes(), in_turn.dsink.Bytes());
  }
}

std::string KindName(const testing::TestParamInfo<ContextParallel>& info) {
  constexpr const char* kNames[] = {"Ring", "AllToAll", "Gather", "Hierarchical"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, AttentionCoreTest,
                         testing::Values(ContextParallel::kRing, ContextParallel::kAllToAll,
                                         ContextParallel::kGather, ContextParallel::kHierarchical),
                         KindName);

// The formulas of docs/context_parallel.md, for T tokens of a rank, N = G R heads, b bytes.
class ContextCostTest : public testing::Test {
 protected:
  static constexpr int kSize = 4;
  static constexpr double kNear = 0.1;

  ContextCostTest() {
    case_.sample_length = 256;
    case_.lengths = {256};
    case_.heads = 2;
    case_.head_size = 64;
    Count();
  }
  // Cross-attention, to twice as many tokens.
  void TakeKeysOfAnEncoder() {
    case_.sample_length = 0;
    case_.causal = false;
    case_.encoder_lengths = {512};
    Count();
  }
  void Count() {
    const int64_t tokens = case_.tokens() / kSize;
    keys_ = 2 * case_.keys() / kSize * case_.groups * case_.head_size;
    queries_ = tokens * case_.groups * case_.heads * case_.head_size;
    lse_ = 4 * tokens * case_.groups * case_.heads;
  }
  Measured Measure(ContextParallel kind, DType dtype) {
    case_.dtype = dtype;
    Measured measured;
    Experiment(case_).OnRanks(kSize, kind, &measured);
    return measured;
  }
  static void ExpectClose(int64_t got, int64_t want, const char* what) {
    EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want),
                kNear * static_cast<double>(want))
        << what;
  }
  void ExpectCostOfRing(DType dtype) {
    const int64_t b = SizeOf(dtype), sums = dtype == DType::kFloat32 ? 0 : 4 * queries_;
    const Measured measured = Measure(ContextParallel::kRing, dtype);
    ExpectClose(measured.saved, lse_, "saved");
    ExpectClose(measured.scratch, 2 * b * keys_ + 3 * 4 * keys_ + sums, "scratch");
    EXPECT_EQ(measured.forward_bytes[0], (kSize - 1) * b * keys_);
    EXPECT_EQ(measured.backward_bytes[0], (kSize - 1) * b * keys_ + kSize * 4 * keys_);
  }
  void ExpectCostOfGather(DType dtype) {
    const int64_t b = SizeOf(dtype), sums = dtype == DType::kFloat32 ? 0 : 4 * queries_;
    const Measured measured = Measure(ContextParallel::kGather, dtype);
    ExpectClose(measured.saved, lse_, "saved");
    ExpectClose(measured.scratch, kSize * (b + 4) * keys_ + sums, "scratch");
    EXPECT_EQ(measured.forward_bytes[0], (kSize - 1) * b * keys_);
    EXPECT_EQ(measured.backward_bytes[0], (kSize - 1) * b * keys_);
    EXPECT_EQ(measured.backward_bytes[1], (kSize - 1) * 4 * keys_);
  }
  void ExpectCostOfAllToAll(DType dtype) {
    const int64_t b = SizeOf(dtype), qkv = queries_ + keys_;
    const Measured measured = Measure(ContextParallel::kAllToAll, dtype);
    ExpectClose(measured.saved, b * qkv + b * queries_ + lse_, "saved");
    ExpectClose(measured.scratch, b * qkv + std::max(3 * b * queries_, 2 * b * qkv), "scratch");
    const int64_t moved = (kSize - 1) * b * (2 * queries_ + keys_) / kSize;
    EXPECT_EQ(measured.forward_bytes[0], moved);
    EXPECT_EQ(measured.backward_bytes[0], moved);
  }

  // Exchanges halves of a team's share of the groups, and keys of a half in each ring.
  void ExpectCostOfTeams(DType dtype) {
    constexpr int kTeam = 2, kTeams = kSize / kTeam;
    const int64_t b = SizeOf(dtype), qkv = queries_ + keys_;
    const int64_t sums = dtype == DType::kFloat32 ? 0 : 4 * queries_;
    const Measured measured = Measure(ContextParallel::kHierarchical, dtype);
    ExpectClose(measured.saved, b * qkv + b * queries_ + lse_, "saved");
    const int64_t ring = ((2 * b + 12) * keys_ + sums) / 2;
    ExpectClose(measured.scratch,
                b * qkv + b * queries_ + std::max(2 * b * queries_, b * qkv) + ring, "scratch");
    const int64_t exchanged = (kTeam - 1) * b * (2 * queries_ + keys_) / kTeam;
    const int64_t passed = (kTeams - 1) * b * keys_;
    EXPECT_EQ(measured.forward_bytes[0], exchanged + passed);
    EXPECT_EQ(measured.backward_bytes[0], exchanged + passed + kTeams * 4 * keys_);
  }

  Case case_;
  int64_t keys_, queries_;  // elements of a rank's keys and values, and of its queries
  int64_t lse_;             // bytes
};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};

TEST_F(ContextCostTest, ARingHoldsTwoRanksKeysHoweverManyRanksThereAre) {
  for (DType dtype : kDTypes) ExpectCostOfRing(dtype);
}

TEST_F(ContextCostTest, AGatherHoldsAllKeysWhileItComputes) {
  for (DType dtype : kDTypes) ExpectCostOfGather(dtype);
}

TEST_F(ContextCostTest, AnAllToAllKeepsAsMuchAsTheShardAndMovesLess) {
  for (DType dtype : kDTypes) ExpectCostOfAllToAll(dtype);
}

TEST_F(ContextCostTest, TeamsExchangeHeadsAndPassKeysThatTheyAllNeed) {
  for (DType dtype : kDTypes) ExpectCostOfTeams(dtype);
}

TEST_F(ContextCostTest, CrossAttentionCostsTheSameInItsOwnKeys) {
  TakeKeysOfAnEncoder();
  for (DType dtype : kDTypes) {
    ExpectCostOfRing(dtype);
    ExpectCostOfGather(dtype);
    ExpectCostOfAllToAll(dtype);
    ExpectCostOfTeams(dtype);
  }
}

}  // namespace
}  // namespace megatron
