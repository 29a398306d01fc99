#include "megatron/optim/initial_pieces.h"

#include <algorithm>

#include "megatron/tensor/parameter.h"

namespace megatron {

void AppendInitialPieces(const FlatParameter& flat, const FlatRange& wanted,
                         std::vector<InitialPiece>* pieces) {
  if (wanted.size() == 0) return;
  const int64_t row_elements = flat.range.size() / flat.parameter->sharding.local_shape[0];
  const int64_t rows_at_once = std::max<int64_t>(1, kInitialPieceElements / row_elements);
  const int64_t end = (wanted.end - flat.range.begin + row_elements - 1) / row_elements;
  for (int64_t row = (wanted.begin - flat.range.begin) / row_elements; row < end;
       row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, end - row);
    const int64_t begin = flat.range.begin + row * row_elements;
    pieces->push_back({&flat, row, num_rows, {begin, begin + num_rows * row_elements}});
  }
}

void FillInitialPiece(const InitialPiece& piece, uint64_t seed, const Tensor& out) {
  const Parameter& parameter = *piece.flat->parameter;
  Parameter part;
  part.name = parameter.name;
  part.initializer = parameter.initializer;
  part.sharding = parameter.sharding;
  part.sharding.offset[0] += piece.row;
  part.sharding.local_shape[0] = piece.num_rows;
  FillInitial(part, seed, out.View(part.sharding.local_shape));
}

}  // namespace megatron
