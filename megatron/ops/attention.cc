#include "megatron/ops/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// The ways to split the work over threads. All give the same bits.
enum class Cut { kRowBlocks, kKeyBlocks, kSequences };

int64_t RowBlocks(int64_t rows) { return (rows + kAttentionRows - 1) / kAttentionRows; }
int64_t KeyBlocks(int64_t keys) { return (keys + kAttentionKeys - 1) / kAttentionKeys; }

void CheckOperand(const Stream& stream, const Tensor& x, DType dtype, const Shape& shape) {
  CheckTensor(stream, x, dtype, shape);
  CHECK(x.stride(-1) == 1 || x.dim(-1) <= 1) << "the last dim of " << x << " is not contiguous";
}

void CheckInputs(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                 const Tensor& lse_TGR) {
  const Tensor &q = in.q_TGRD, &k = in.k_UGD;
  CHECK_EQ(q.rank(), 4) << q;
  CHECK_EQ(k.rank(), 3) << k;
  CheckFloating(q);
  CheckOperand(stream, q, q.dtype(), q.shape());
  CheckOperand(stream, k, q.dtype(), {k.dim(0), q.dim(1), q.dim(3)});
  const Tensor& v = in.v_UGE;
  CHECK_EQ(v.rank(), 3) << v;
  CheckOperand(stream, v, q.dtype(), {k.dim(0), q.dim(1), v.dim(2)});
  CheckTensor(stream, lse_TGR, DType::kFloat32, {q.dim(0), q.dim(1), q.dim(2)});
  const Tensor& cu_seqlens = attention.cu_seqlens_q;
  CHECK(cu_seqlens.rank() == 1 && cu_seqlens.dim(0) >= 1) << cu_seqlens;
  CheckContiguous(stream, cu_seqlens, DType::kInt32, cu_seqlens.shape());
  CheckContiguous(stream, attention.cu_seqlens_k, DType::kInt32, cu_seqlens.shape());
  if (attention.place_q_T || attention.place_k_U) {
    CheckContiguous(stream, attention.place_q_T, DType::kInt32, {q.dim(0)});
    CheckContiguous(stream, attention.place_k_U, DType::kInt32, {k.dim(0)});
  }
  CheckDropout(stream, attention.dropout, q.dim(0));
  if (attention.largest_scores_N) {
    const Tensor& largest = attention.largest_scores_N;
    CheckContiguous(stream, largest, DType::kFloat32, {largest.numel()});
    CHECK_LE(attention.dropout.first_column + q.dim(1) * q.dim(2), largest.numel());
  }
  if (in.bias_WN) {
    CheckContiguous(stream, in.bias_WN, DType::kFloat32, {in.bias_WN.dim(0), q.dim(1) * q.dim(2)});
    CHECK_EQ(in.bias_WN.dim(0) % 2, 1) << in.bias_WN;
  }
  if (in.sink_N) CheckContiguous(stream, in.sink_N, q.dtype(), {q.dim(1) * q.dim(2)});
  CHECK_GE(attention.softcap, 0);
  CHECK(attention.softcap == 0 || !in.bias_WN) << "a bias of capped scores";
  CHECK_GE(attention.window_size, 0);
  CHECK(attention.window_size == 0 || attention.causal) << "a window of what is not causal";
}

// An output that is added to must be fp32; others may be.
void CheckOutput(const Stream& stream, const Tensor& x, DType dtype, bool add, const Shape& shape) {
  CheckOperand(stream, x, add || x.dtype() == DType::kFloat32 ? DType::kFloat32 : dtype, shape);
}

void CheckLengths(const Tensor& cu_seqlens, int64_t tokens) {
  const int32_t* begin = cu_seqlens.data<int32_t>();
  const int32_t* end = begin + cu_seqlens.dim(0);
  CHECK_EQ(*begin, 0);
  CHECK_EQ(end[-1], tokens);
  CHECK(std::is_sorted(begin, end)) << "cu_seqlens must not descend";
}

Shape OutputShape(const AttentionInputs& in) {
  const Shape& q = in.q_TGRD.shape();
  return {q[0], q[1], q[2], in.v_UGE.dim(2)};
}

AttentionOperand Operand(const Tensor& x) {
  return {x.raw(), x.dtype(), x.stride(0), x.stride(1), x.rank() == 4 ? x.stride(2) : 0};
}

// Philox keys of this rank's heads.
void FillDropoutKeys(const Dropout& dropout, int64_t heads, uint32_t* keys) {
  const uint64_t seed = dropout.key.lo | uint64_t{dropout.key.hi} << 32;
  for (int64_t head = 0; head < heads; ++head) {
    const PhiloxKey key = DeriveKey(seed, kPhiloxDropout, dropout.first_column + head, 0);
    keys[2 * head] = key.lo;
    keys[2 * head + 1] = key.hi;
  }
}

void FillSinks(const Tensor& sink_N, float* sinks) {
  for (int64_t n = 0; n < sink_N.numel(); ++n) {
    switch (sink_N.dtype()) {
      case DType::kBFloat16:
        sinks[n] = ToFloat(sink_N.data<BFloat16>()[n]);
        break;
      case DType::kFloat16:
        sinks[n] = ToFloat(sink_N.data<Float16>()[n]);
        break;
      default:
        sinks[n] = sink_N.data<float>()[n];
    }
  }
}

// The numbers of floats in which gradients are summed.
struct SumSizes {
  int64_t bias = 0, sinks = 0;
};

AttentionProblem MakeProblem(const Attention& attention, const AttentionInputs& in,
                             const Tensor& out_TGRE, const Tensor& lse_TGR, const SumSizes& sums) {
  AttentionProblem problem;
  problem.dtype = in.q_TGRD.dtype();
  problem.group_heads = in.q_TGRD.dim(2);
  problem.head_dim = in.q_TGRD.dim(3);
  problem.value_dim = in.v_UGE.dim(2);
  problem.scale = attention.scale;
  problem.softcap = attention.softcap;
  problem.causal = attention.causal;
  problem.window_size = attention.window_size;
  problem.q = Operand(in.q_TGRD);
  problem.k = Operand(in.k_UGD);
  problem.v = Operand(in.v_UGE);
  problem.out = Operand(out_TGRE);
  problem.lse = {lse_TGR.raw(), lse_TGR.dtype(), lse_TGR.stride(0), lse_TGR.stride(1),
                 lse_TGR.stride(2)};
  problem.add_to_queries = attention.add_to_queries;
  problem.add_to_keys = attention.add_to_keys;
  if (attention.place_q_T) {
    problem.place_q = attention.place_q_T.data<int32_t>();
    problem.place_k = attention.place_k_U.data<int32_t>();
  }
  if (in.bias_WN) {
    problem.bias = in.bias_WN.data<float>();
    problem.bias_reach = static_cast<int32_t>(in.bias_WN.dim(0) / 2);
    problem.bias_heads = static_cast<int32_t>(in.bias_WN.dim(1));
  }
  if (attention.largest_scores_N) {
    problem.largest_scores =
        attention.largest_scores_N.data<float>() + attention.dropout.first_column;
  }
  // Arguments that the threads share.
  const int64_t heads = in.q_TGRD.dim(1) * problem.group_heads;
  float* const shared = Workspace(WorkspaceKind::kShared, sums.bias + sums.sinks + 3 * heads);
  if (sums.bias > 0) problem.bias_sums = shared;
  if (sums.sinks > 0) problem.sink_sums = shared + sums.bias;
  float* const of_heads = shared + sums.bias + sums.sinks;
  if (in.sink_N) {
    FillSinks(in.sink_N, of_heads);
    problem.sink = of_heads;
  }
  const Dropout& dropout = attention.dropout;
  problem.dropout = dropout.probability > 0;
  if (!problem.dropout) return problem;
  problem.dropout_threshold =
      static_cast<uint32_t>(std::floor(std::ldexp(double{dropout.probability}, 32)));
  problem.dropout_scale = 1 / (1 - dropout.probability);
  uint32_t* const keys = reinterpret_cast<uint32_t*>(of_heads + heads);
  FillDropoutKeys(dropout, heads, keys);
  problem.dropout_keys = keys;
  problem.sample = dropout.sample_T.data<int64_t>();
  problem.position = dropout.position_T.data<int32_t>();
  return problem;
}

// Numbers the pieces of a split: sequence by sequence, group by group.
class Pieces {
 public:
  Pieces(const Attention& attention, const AttentionInputs& in, Cut cut)
      : q_begin_(attention.cu_seqlens_q.data<int32_t>()),
        k_begin_(attention.cu_seqlens_k.data<int32_t>()),
        sequences_(attention.cu_seqlens_q.dim(0) - 1),
        groups_(in.q_TGRD.dim(1)),
        heads_(in.q_TGRD.dim(2)),
        cut_(cut) {}

  // Joins groups of the sequences of which TakesFewRows, so that a piece reads what lies together
  // in a cache, and that threads have about as much to do.
  void JoinGroups(const AttentionProblem& problem, int64_t threads) {
    constexpr int64_t kManyPieces = 8;  // of a thread: then it does not matter who has the last one
    few_rows_ = 0;
    int64_t few = 0;
    for (int64_t s = 0; s < sequences_; ++s) {
      const int64_t rows = (q_begin_[s + 1] - q_begin_[s]) * heads_;
      if (rows == 0 || !TakesFewRows(problem, rows)) continue;
      few_rows_ = std::max(few_rows_, rows);
      ++few;
    }
    int64_t parts = 1;
    while (parts < groups_ && few * parts < kManyPieces * threads && few * parts % threads != 0)
      ++parts;
    joined_ = (groups_ + parts - 1) / parts;
  }
  bool HaveFewRows() const { return few_rows_ > 0; }

  // Finds piece `index`; the indices passed to one object must ascend. Returns false if there are
  // no more pieces.
  bool Find(int64_t index, AttentionPiece* piece) {
    while (sequence_ < sequences_ && index >= first_ + PerSequence()) {
      first_ += PerSequence();
      first_row_block_ += groups_ * RowBlocks(QLength() * heads_);
      ++sequence_;
    }
    if (sequence_ == sequences_) return false;
    piece->q_begin = q_begin_[sequence_];
    piece->q_length = QLength();
    piece->k_begin = k_begin_[sequence_];
    piece->k_length = KLength();
    piece->group = (index - first_) / PerGroup() * Joined();
    piece->end_group = std::min(groups_, piece->group + Joined());
    piece->end_row_block = RowBlocks(QLength() * heads_);
    piece->end_key_block = KeyBlocks(KLength());
    piece->row_blocks_before = first_row_block_ + piece->group * piece->end_row_block;
    const int64_t block = (index - first_) % PerGroup();
    if (cut_ == Cut::kRowBlocks) {
      piece->first_row_block = block;
      piece->end_row_block = block + 1;
      piece->wants_dkv = false;
    } else if (cut_ == Cut::kKeyBlocks) {
      piece->first_key_block = block;
      piece->end_key_block = block + 1;
      piece->wants_dq = false;
    }
    return true;
  }

 private:
  int64_t QLength() const { return q_begin_[sequence_ + 1] - q_begin_[sequence_]; }
  int64_t KLength() const { return k_begin_[sequence_ + 1] - k_begin_[sequence_]; }
  // The groups of each piece of the sequence.
  int64_t Joined() const {
    const int64_t rows = QLength() * heads_;
    return rows == 0 || rows > few_rows_ ? 1 : std::min(joined_, kAttentionRows / rows);
  }
  int64_t PerSequence() const { return (groups_ + Joined() - 1) / Joined() * PerGroup(); }
  int64_t PerGroup() const {
    switch (cut_) {
      case Cut::kRowBlocks:
        return RowBlocks(QLength() * heads_);
      case Cut::kKeyBlocks:
        return KeyBlocks(KLength());
      case Cut::kSequences:
        return 1;
    }
    return 0;
  }

  const int32_t *q_begin_, *k_begin_;
  int64_t sequences_, groups_, heads_;
  Cut cut_;
  int64_t few_rows_ = 0;  // the most rows of sequences whose groups are joined
  int64_t joined_ = 1;
  int64_t sequence_ = 0;
  int64_t first_ = 0;            // index of the sequence's first piece
  int64_t first_row_block_ = 0;  // index of the sequence's first one among all row blocks
};

using Kernel = void (*)(const AttentionProblem&, const AttentionPiece&, float*);

// A thread takes the next piece when it has finished one: pieces differ in cost, and no result
// depends on which thread computes it.
void RunPieces(const Stream& stream, const Pieces& pieces, const AttentionProblem& problem,
               int64_t scratch_floats, Kernel kernel) {
  std::atomic<int64_t> next{0};
  stream.pool()->ParallelFor(stream.pool()->num_threads(), [&](int64_t, int64_t) {
    float* const scratch = Workspace(WorkspaceKind::kPrivate, scratch_floats);
    Pieces mine = pieces;
    AttentionPiece piece, following;
    const auto find = [&](AttentionPiece* found) {
      return mine.Find(next.fetch_add(1, std::memory_order_relaxed), found);
    };
    for (bool found = find(&piece); found; piece = following) {
      // Short pieces ask for what the next one reads.
      const bool knows_next = pieces.HaveFewRows();
      if (knows_next) found = find(&following);
      piece.next = knows_next && found ? &following : nullptr;
      kernel(problem, piece, scratch);
      if (!knows_next) found = find(&following);
    }
  });
}

// Returns whether whole sequences and groups occupy all threads. Splitting them by blocks instead
// takes 7 products instead of 5.
bool EnoughSequences(const Stream& stream, const Attention& attention, int64_t groups) {
  const int32_t* q = attention.cu_seqlens_q.data<int32_t>();
  const int32_t* k = attention.cu_seqlens_k.data<int32_t>();
  int64_t total = 0, largest = 0;
  for (int64_t s = 0; s + 1 < attention.cu_seqlens_q.dim(0); ++s) {
    const int64_t cost = int64_t{q[s + 1] - q[s]} * (k[s + 1] - k[s]);
    total += cost * groups;
    largest = std::max(largest, cost);
  }
  return largest * stream.pool()->num_threads() <= total;
}

int64_t LongestSequence(const Tensor& cu_seqlens) {
  const int32_t* begin = cu_seqlens.data<int32_t>();
  int64_t longest = 0;
  for (int64_t s = 0; s + 1 < cu_seqlens.dim(0); ++s) {
    longest = std::max<int64_t>(longest, begin[s + 1] - begin[s]);
  }
  return longest;
}

// Number of row blocks of all sequences and groups.
int64_t CountRowBlocks(const Attention& attention, const AttentionInputs& in) {
  const int32_t* begin = attention.cu_seqlens_q.data<int32_t>();
  int64_t count = 0;
  for (int64_t s = 0; s + 1 < attention.cu_seqlens_q.dim(0); ++s)
    count += RowBlocks((begin[s + 1] - begin[s]) * in.q_TGRD.dim(2));
  return count * in.q_TGRD.dim(1);
}

// out += the sums [row blocks, R, W], block by block.
void AddSums(const Stream& stream, const Attention& attention, int64_t per_group, const float* all,
             const Tensor& out_WN) {
  const int32_t* begin = attention.cu_seqlens_q.data<int32_t>();
  const int64_t width = out_WN.dim(0), heads = out_WN.dim(1), groups = heads / per_group;
  float* const out = out_WN.data<float>();
  stream.pool()->ParallelFor(heads, [&](int64_t first_head, int64_t end_head) {
    for (int64_t head = first_head; head < end_head; ++head) {
      const int64_t group = head / per_group;
      int64_t before = 0;
      for (int64_t s = 0; s + 1 < attention.cu_seqlens_q.dim(0); ++s) {
        const int64_t blocks = RowBlocks((begin[s + 1] - begin[s]) * per_group);
        for (int64_t block = 0; block < blocks; ++block) {
          const float* const sums =
              all + ((before + group * blocks + block) * per_group + head % per_group) * width;
          for (int64_t w = 0; w < width; ++w) out[w * heads + head] += sums[w];
        }
        before += groups * blocks;
      }
    }
  });
}

}  // namespace

void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRE, const Tensor& lse_TGR) {
  CheckInputs(stream, attention, in, lse_TGR);
  CheckOutput(stream, out_TGRE, in.q_TGRD.dtype(), attention.add_to_queries, OutputShape(in));
  if (RunsOnCuda(stream)) return OnCuda<AttentionForward>(stream, attention, in, out_TGRE, lse_TGR);
  if (!RunsOnCpu(stream)) return;
  CheckLengths(attention.cu_seqlens_q, in.q_TGRD.dim(0));
  CheckLengths(attention.cu_seqlens_k, in.k_UGD.dim(0));
  const AttentionProblem problem = MakeProblem(attention, in, out_TGRE, lse_TGR, SumSizes());
  Pieces pieces(attention, in, Cut::kRowBlocks);
  pieces.JoinGroups(problem, stream.pool()->num_threads());
  RunPieces(
      stream, pieces, problem, AttentionForwardScratch(problem),
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::AttentionForwardPiece : avx2::AttentionForwardPiece);
}

void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRE, const Tensor& lse_TGR, const Tensor& dout_TGRE,
                       const AttentionInputs& gradients) {
  CheckInputs(stream, attention, in, lse_TGR);
  const DType dtype = in.q_TGRD.dtype();
  for (const Tensor* x : {&out_TGRE, &dout_TGRE}) {
    CheckOperand(stream, *x, dtype, OutputShape(in));
  }
  CheckOutput(stream, gradients.q_TGRD, dtype, attention.add_to_queries, in.q_TGRD.shape());
  CheckOutput(stream, gradients.k_UGD, dtype, attention.add_to_keys, in.k_UGD.shape());
  CheckOutput(stream, gradients.v_UGE, dtype, attention.add_to_keys, in.v_UGE.shape());
  if (in.bias_WN) CheckContiguous(stream, gradients.bias_WN, DType::kFloat32, in.bias_WN.shape());
  const bool wants_sinks = in.sink_N && gradients.sink_N;
  if (wants_sinks) CheckContiguous(stream, gradients.sink_N, DType::kFloat32, in.sink_N.shape());
  if (RunsOnCuda(stream)) {
    return OnCuda<AttentionBackward>(stream, attention, in, out_TGRE, lse_TGR, dout_TGRE,
                                     gradients);
  }
  if (!RunsOnCpu(stream)) return;
  CheckLengths(attention.cu_seqlens_q, in.q_TGRD.dim(0));
  CheckLengths(attention.cu_seqlens_k, in.k_UGD.dim(0));
  const int64_t per_group = in.q_TGRD.dim(2);
  SumSizes sums;
  if (wants_sinks) sums.sinks = CountRowBlocks(attention, in) * per_group;
  if (in.bias_WN) sums.bias = CountRowBlocks(attention, in) * per_group * in.bias_WN.dim(0);
  AttentionProblem problem = MakeProblem(attention, in, out_TGRE, lse_TGR, sums);
  problem.dout = Operand(dout_TGRE);
  problem.dq = Operand(gradients.q_TGRD);
  problem.dk = Operand(gradients.k_UGD);
  problem.dv = Operand(gradients.v_UGE);
  const Kernel kernel = ActiveIsa() == CpuIsa::kAvx512 ? avx512::AttentionBackwardPiece
                                                       : avx2::AttentionBackwardPiece;
  if (EnoughSequences(stream, attention, in.q_TGRD.dim(1))) {
    const int64_t key_blocks = KeyBlocks(LongestSequence(attention.cu_seqlens_k));
    RunPieces(stream, Pieces(attention, in, Cut::kSequences), problem,
              AttentionBackwardScratch(problem, key_blocks), kernel);
  } else {
    RunPieces(stream, Pieces(attention, in, Cut::kKeyBlocks), problem,
              AttentionBackwardScratch(problem, 1), kernel);
    RunPieces(stream, Pieces(attention, in, Cut::kRowBlocks), problem,
              AttentionBackwardScratch(problem, 0), kernel);
  }
  if (sums.bias > 0) AddSums(stream, attention, per_group, problem.bias_sums, gradients.bias_WN);
  if (sums.sinks > 0) {
    AddSums(stream, attention, per_group, problem.sink_sums,
            gradients.sink_N.View({1, gradients.sink_N.numel()}));
  }
}

bool HopperAttentionIsAvailable() {
  return cuda_kernel<&HopperAttentionIsAvailable> != nullptr &&
         cuda_kernel<&HopperAttentionIsAvailable>();
}

}  // namespace megatron::ops
