#include "megatron/layers/tensor_overlap.h"

#include <vector>

#include "glog/logging.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/tensor_parallel.h"

namespace megatron {
namespace {

// Without sequence parallelism a sum is one product and one all-reduce in each piece. With it the
// rows of a piece are parts of all ranks' rows, a product each, so there are fewer pieces.
constexpr int64_t kAllReduces = 4, kReduceScatters = 2;

// Starts to send this rank's rows to the rank `step` behind it, and to receive those of the rank
// as far before it.
AsyncCall StartPass(const LayerContext& ctx, int step, const Tensor& mine_TH,
                    const Tensor& arriving_TH) {
  const ProcessGroup& ranks = ctx.tensor_group;
  const int to = (ranks.rank() + step) % ranks.size();
  const int from = (ranks.rank() - step + ranks.size()) % ranks.size();
  return StartAsync(ranks, ctx.stream, TimeCategory::kTensorParallel,
                    [=](const ProcessGroup& group, const Stream& stream) {
                      group.Exchange({{to, mine_TH}}, {{from, arriving_TH}}, stream);
                    });
}

}  // namespace

void GatherInPieces(const LayerContext& ctx, const Tensor& x_TH,
                    absl::FunctionRef<void(const Tensor&, int64_t)> product) {
  CHECK(ctx.sequence_parallel);
  const int ranks = ctx.tensor_group.size(), rank = ctx.tensor_group.rank();
  const int64_t rows = x_TH.dim(0);
  const Tensor all_TH = AllRowsOf(ctx, x_TH);
  const auto source = [&](int step) { return (rank - step + ranks) % ranks; };
  const auto rows_of = [&](int from) { return all_TH.Slice(0, from * rows, (from + 1) * rows); };
  std::vector<AsyncCall> passes;
  for (int step = 1; step < ranks; ++step)
    passes.push_back(StartPass(ctx, step, x_TH, rows_of(source(step))));
  product(x_TH, rank * rows);
  for (int step = 1; step < ranks; ++step) {
    passes[step - 1].Wait();
    product(rows_of(source(step)), source(step) * rows);
  }
}

void ReduceInPieces(const LayerContext& ctx, const Tensor& y_TH, int64_t row_multiple,
                    absl::FunctionRef<void(int64_t, int64_t, const Tensor&)> product) {
  const Tensor summand_TH = SummandOf(ctx, y_TH);
  const int64_t rows = y_TH.dim(0), parts = ctx.sequence_parallel ? ctx.tensor_group.size() : 1;
  const int64_t pieces = ctx.sequence_parallel ? kReduceScatters : kAllReduces;
  const auto begin_of = [&](int64_t piece) {
    return piece == pieces ? rows : rows * piece / pieces / row_multiple * row_multiple;
  };
  std::vector<AsyncCall> sums;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t begin = begin_of(piece), end = begin_of(piece + 1);
    if (begin == end) continue;
    // A piece's rows lie together: those of rank 0, then those of rank 1, and so on.
    const Tensor piece_TH = summand_TH.Slice(0, parts * begin, parts * end);
    for (int64_t part = 0; part < parts; ++part) {
      product(part * rows + begin, part * rows + end,
              piece_TH.Slice(0, part * (end - begin), (part + 1) * (end - begin)));
    }
    sums.push_back(StartReduce(ctx, piece_TH, y_TH.Slice(0, begin, end)));
  }
  for (const AsyncCall& sum : sums) sum.Wait();
}

}  // namespace megatron
