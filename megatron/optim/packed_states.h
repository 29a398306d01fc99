// The master weights and optimizer states of a rank, packed in one piece of the host's memory, so
// that they can be kept, sent and taken over by ranks that share them out otherwise.
//
//   PackedStates mine(parameters, buffers, buffers.options().data, /*by_parts=*/false);
//   mine.Pack(buffers, bytes);
//   ...
//   PackedStates others(parameters, buffers, data_of_another_rank, /*by_parts=*/false);
//   others.Unpack(bytes_of_another_rank, buffers);   // what is this rank's, too
//
// The bytes of a parameter are those of its master, then those of each of its states.
//
// Everything lies in memory of the CPU and not in files, and no parameter is an expert's. On the
// meta device sizes are known, and nothing is copied.
#ifndef MEGATRON_OPTIM_PACKED_STATES_H_
#define MEGATRON_OPTIM_PACKED_STATES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "megatron/optim/flat_layout.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class PackedStates {
 public:
  // What a rank has that is `data` among the ranks which share out the states of such buffers:
  // its shard or, `by_parts`, its part of it. With one shard of one part that is everything.
  // `parameters` are those of the buffers, in the order of their registration.
  PackedStates(const std::vector<Parameter*>& parameters, const ParameterBuffers& buffers,
               const DataRank& data, bool by_parts);

  int64_t bytes() const { return bytes_; }
  // Copies what `buffers` have, which is this, to `bytes`.
  void Pack(const ParameterBuffers& buffers, char* bytes) const;
  // Copies those of these bytes to `buffers` that belong there. Weights that have masters stay as
  // they are.
  void Unpack(const char* bytes, const ParameterBuffers& buffers) const;

 private:
  struct Piece {
    FlatRange range;  // within the parameter's block
    int64_t at = 0;   // where its bytes begin
  };

  std::map<const Parameter*, Piece> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PACKED_STATES_H_
