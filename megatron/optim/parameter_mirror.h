// ParameterMirror: the host's copy of the memory of a ParameterBuffers, for checkpoints. What lies
// on the host is its own copy.
#ifndef MEGATRON_OPTIM_PARAMETER_MIRROR_H_
#define MEGATRON_OPTIM_PARAMETER_MIRROR_H_

#include <vector>

#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class ParameterMirror {
 public:
  // Mirrors weights, masters and optimizer states, and `others` along with them. All must outlive
  // the mirror.
  explicit ParameterMirror(const ParameterBuffers& buffers, const std::vector<Tensor>& others = {});

  // Returns the host's copy of `part`, a part of one of these tensors.
  Tensor Of(const Tensor& part) const;
  void Fetch(const Stream& stream) const;  // host = device
  void Send(const Stream& stream) const;   // device = host

 private:
  std::vector<Tensor> mirrored_;
  std::vector<HostMirror> mirrors_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_MIRROR_H_
