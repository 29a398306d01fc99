#include "megatron/optim/parameter_mirror.h"

#include "glog/logging.h"

namespace megatron {
namespace {

bool Holds(const Tensor& whole, const Tensor& part) {
  const char* const begin = static_cast<const char*>(whole.raw());
  const char* const at = static_cast<const char*>(part.raw());
  return begin <= at && at + part.bytes() <= begin + whole.bytes();
}

}  // namespace

ParameterMirror::ParameterMirror(const ParameterBuffers& buffers,
                                 const std::vector<Tensor>& others) {
  mirrored_ = {buffers.weights()};
  for (size_t i = 0; i < buffers.num_states(); ++i) {
    mirrored_.push_back(buffers.state(i));
    mirrored_.push_back(buffers.host_state(i));
  }
  mirrored_.push_back(buffers.masters());
  mirrored_.push_back(buffers.host_masters());
  mirrored_.insert(mirrored_.end(), others.begin(), others.end());
  for (const Tensor& tensor : mirrored_) {
    mirrors_.push_back(tensor.empty() ? HostMirror() : HostMirror(tensor, "parameters"));
  }
}

Tensor ParameterMirror::Of(const Tensor& part) const {
  for (size_t i = 0; i < mirrors_.size(); ++i) {
    if (!mirrored_[i].empty() && Holds(mirrored_[i], part)) return mirrors_[i].Of(part);
  }
  LOG(FATAL) << part << " is no part of the parameters";
  return Tensor();
}

void ParameterMirror::Fetch(const Stream& stream) const {
  for (size_t i = 0; i < mirrors_.size(); ++i) {
    if (!mirrored_[i].empty()) mirrors_[i].Fetch(stream);
  }
}

void ParameterMirror::Send(const Stream& stream) const {
  for (size_t i = 0; i < mirrors_.size(); ++i) {
    if (!mirrored_[i].empty()) mirrors_[i].Send(stream);
  }
}

}  // namespace megatron
