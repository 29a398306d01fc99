// The sum of matrices over ranks, approximated by matrices of low rank: PowerSGD (T. Vogels et al.,
// arXiv 1905.13727).
//
// With M_i the matrix of rank i, and Q that of the step before:
//   P = sum over ranks of M_i Q, whose columns are made orthonormal
//   Q = sum over ranks of M_iᵀ P
//   the sum of all M_i becomes P Qᵀ
// A sum whose rank is no higher than that of Q is nearly exact when Q has seen it once before. With
// feedback M_i is the gradient and what the step before left of it: M_i - P Qᵀ / ranks.
//
// A tensor is flat and has matrices in it. Those of which P and Q together have less than
// 1 / min_compression_rate of the elements are summed so. All other elements are summed as they
// are. Products and sums are fp32 and have the same bits on all ranks. This runs on the CPU.
#ifndef MEGATRON_OPTIM_COMPRESSION_LOW_RANK_SUM_H_
#define MEGATRON_OPTIM_COMPRESSION_LOW_RANK_SUM_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A matrix, row by row, in a flat tensor from `begin` on.
struct MatrixPlace {
  int64_t begin, rows, columns;
};

class LowRankSum {
 public:
  // The matrices ascend by `begin` and do not overlap; the tensors have `elements`.
  LowRankSum(int64_t elements, const std::vector<MatrixPlace>& matrices, int rank,
             double min_compression_rate);

  // The elements of all Q, and those of scratch.
  int64_t query_elements() const { return query_elements_; }
  int64_t scratch_elements() const { return factor_elements_ + dense_elements_ + query_elements_; }
  // The elements that are summed as they are.
  int64_t dense_elements() const { return dense_elements_; }

  // Fills the first Q with random numbers, the same on all ranks that give the same seed.
  void Start(uint64_t seed, const Tensor& queries) const;
  // gradients = about their sum over ranks. `error` is what is fed back; it may be empty. All are
  // fp32; `queries` and `error` stay from call to call.
  void Sum(const Tensor& gradients, const Tensor& error, const Tensor& queries,
           const Tensor& scratch, const ProcessGroup& group, const Stream& stream) const;

 private:
  struct Matrix {
    MatrixPlace place;
    int64_t rank;
    int64_t factor_begin, query_begin;  // its Pᵀ and Qᵀ begin here among those of all matrices
  };
  struct Run {
    int64_t begin, size;
  };
  // Calls body(matrix, its elements, Pᵀ, Qᵀ) for each matrix.
  template <typename Body>
  void ForEachMatrix(const Tensor& flat, const Tensor& factors, const Tensor& queries,
                     const Body& body) const;

  std::vector<Matrix> matrices_;
  std::vector<Run> dense_;  // the elements that are summed as they are
  int64_t factor_elements_ = 0, dense_elements_ = 0, query_elements_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_LOW_RANK_SUM_H_
