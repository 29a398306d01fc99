// Packed sequences in portions, for tests of ops that keep what a sequence has from call to call.
#ifndef MEGATRON_OPS_PORTIONS_H_
#define MEGATRON_OPS_PORTIONS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "megatron/ops/host_tensor.h"

namespace megatron::ops {

// Calls body(rows, cu_seqlens, position) until all tokens have come: each call has up to `most` new
// tokens of each sequence, or none, and `rows` are their rows among all tokens.
template <typename Body>
void ForEachPortions(const std::vector<int>& lengths, int most, const Body& body) {
  const int count = static_cast<int>(lengths.size());
  std::vector<int> done(lengths.size());
  for (int call = 0; done != lengths; ++call) {
    std::vector<int64_t> rows;
    std::vector<double> begins = {0}, positions;
    int first = 0;
    for (int s = 0; s < count; ++s) {
      const int tokens = std::min((s + call) % (most + 1), lengths[s] - done[s]);
      for (int i = 0; i < tokens; ++i) {
        rows.push_back(first + done[s]);
        positions.push_back(done[s]++);
      }
      begins.push_back(static_cast<double>(rows.size()));
      first += lengths[s];
    }
    if (rows.empty()) continue;
    body(rows, HostTensor::Of({count + 1}, DType::kInt32, begins),
         HostTensor::Of({static_cast<int64_t>(rows.size())}, DType::kInt32, positions));
  }
}

inline char* RowAt(const HostTensor& x, int64_t row) {
  return static_cast<char*>(x.tensor().raw()) + row * x.tensor().bytes() / x.tensor().dim(0);
}

// Returns these rows of a tensor.
inline HostTensor RowsOf(const HostTensor& x, const std::vector<int64_t>& rows) {
  Shape shape = x.tensor().shape();
  shape[0] = static_cast<int64_t>(rows.size());
  HostTensor part(shape, x.tensor().dtype());
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(RowAt(part, static_cast<int64_t>(i)), RowAt(x, rows[i]),
                static_cast<size_t>(x.tensor().bytes() / x.tensor().dim(0)));
  return part;
}

// Writes a part to these rows of a tensor.
inline void PutRows(const HostTensor& part, const std::vector<int64_t>& rows, const HostTensor& x) {
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(RowAt(x, rows[i]), RowAt(part, static_cast<int64_t>(i)),
                static_cast<size_t>(x.tensor().bytes() / x.tensor().dim(0)));
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_PORTIONS_H_
