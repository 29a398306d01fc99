// Pieces of parameters, of whole rows, in which threads fill in initial weights.
#ifndef MEGATRON_OPTIM_INITIAL_PIECES_H_
#define MEGATRON_OPTIM_INITIAL_PIECES_H_

#include <cstdint>
#include <vector>

#include "megatron/optim/flat_layout.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

constexpr int64_t kInitialPieceElements = 1 << 16;

// Rows [row, row + num_rows) of dim 0 of a parameter's block, and the elements that they are.
struct InitialPiece {
  const FlatParameter* flat;
  int64_t row, num_rows;
  FlatRange range;
};

// Appends pieces of whole rows that cover the elements `wanted` of the parameter.
void AppendInitialPieces(const FlatParameter& flat, const FlatRange& wanted,
                         std::vector<InitialPiece>* pieces);

// Fills `out`, the piece's elements in fp32, by the parameter's Initializer.
void FillInitialPiece(const InitialPiece& piece, uint64_t seed, const Tensor& out);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_INITIAL_PIECES_H_
