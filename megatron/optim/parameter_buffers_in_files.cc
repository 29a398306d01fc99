#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/initial_pieces.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {

absl::Status ParameterBuffers::OpenStateFile(const std::string& path) {
  if (state_file_ == nullptr || options_.device.type == DeviceType::kMeta) return absl::OkStatus();
  return state_file_->Open(path);
}

absl::Status ParameterBuffers::OpenWeightFile(const std::string& path) {
  if (weight_file_ == nullptr || options_.device.type == DeviceType::kMeta) return absl::OkStatus();
  return weight_file_->Open(path);
}

absl::Status ParameterBuffers::status() const {
  MEGATRON_RETURN_IF_ERROR(locked_);
  for (const StateFile* file : {state_file_.get(), weight_file_.get()}) {
    if (file != nullptr) {
      MEGATRON_RETURN_IF_ERROR(file->status());
    }
  }
  return absl::OkStatus();
}

// Calls body(file, position) for the files that have elements from `begin` on.
template <typename Body>
void ParameterBuffers::ForEachFile(const Bucket& bucket, int64_t begin, Body body) const {
  if (state_file_ != nullptr) body(*state_file_, OptimizerPosition(bucket, begin));
  if (weight_file_ != nullptr) body(*weight_file_, WeightPosition(bucket, begin));
}

int64_t ParameterBuffers::ExtentEnd(const Bucket& bucket, int64_t begin, bool in_pass) const {
  int64_t end = bucket.range.end;
  ForEachFile(bucket, begin, [&](const StateFile& file, int64_t at) {
    if (file.in_pass() || !in_pass) end = std::min(end, begin + file.ExtentEnd(at) - at);
  });
  return end;
}

bool ParameterBuffers::BeginsExtent(const Bucket& bucket, int64_t begin) const {
  bool begins = false;
  ForEachFile(bucket, begin, [&](const StateFile& file, int64_t at) {
    begins = begins || (at > 0 && file.ExtentEnd(at - 1) == at);
  });
  return begins;
}

absl::Status ParameterBuffers::EnterExtent(const Bucket& bucket, const FlatRange& range) const {
  absl::Status status;
  ForEachFile(bucket, range.begin, [&](StateFile& file, int64_t at) {
    if (file.in_pass()) status.Update(file.Enter(file.extent_of(at)));
  });
  return status;
}

StateFile::Access ParameterBuffers::WeightUpdate() const {
  // Masters make all weights of an extent, unless some are copies.
  const bool all = has_masters() && layout_.optimized_begin == 0;
  return all ? StateFile::Access::kWrite : StateFile::Access::kUpdate;
}

void ParameterBuffers::StartPass(const FilePass& pass) const {
  if (pass.states.has_value()) state_file_->StartPass(*pass.states);
  if (pass.weights.has_value()) weight_file_->StartPass(*pass.weights);
}

void ParameterBuffers::StartUpdate() const {
  FilePass pass;
  if (state_file_ != nullptr) pass.states = StateFile::Access::kUpdate;
  if (weight_file_ != nullptr) pass.weights = WeightUpdate();
  StartPass(pass);
}

absl::Status ParameterBuffers::EndUpdate() const {
  absl::Status status;
  for (StateFile* file : {state_file_.get(), weight_file_.get()}) {
    if (file != nullptr && file->in_pass()) status.Update(file->EndPass());
  }
  return status;
}

absl::Status ParameterBuffers::PassOverFiles(
    const FilePass& pass, bool copies,
    absl::FunctionRef<absl::Status(const Bucket&, const FlatRange&)> body) const {
  const auto run = [&]() -> absl::Status {
    for (const Bucket& bucket : layout_.buckets) {
      const FlatRange all =
          copies ? weight_range(bucket) : HostRange(bucket, optimizer_range(bucket));
      for (FlatRange part = {all.begin, 0}; part.begin < all.end; part.begin = part.end) {
        part.end = std::min(all.end, ExtentEnd(bucket, part.begin, /*in_pass=*/true));
        MEGATRON_RETURN_IF_ERROR(EnterExtent(bucket, part));
        MEGATRON_RETURN_IF_ERROR(body(bucket, part));
      }
    }
    return absl::OkStatus();
  };
  StartPass(pass);
  absl::Status status = run();
  status.Update(EndUpdate());
  return status;
}

ParameterState ParameterBuffers::WithoutTensors(const FlatParameter& flat, const FlatRange& range) {
  ParameterState state;
  state.parameter = flat.parameter;
  state.range = {range.begin - flat.range.begin, range.end - flat.range.begin};
  return state;
}

absl::Status ParameterBuffers::ChangeStatesInFile(
    absl::FunctionRef<absl::Status(const ParameterState&)> change) const {
  FilePass pass;
  if (state_file_ != nullptr) pass.states = StateFile::Access::kUpdate;
  if (weight_file_ != nullptr && !has_masters()) pass.weights = StateFile::Access::kUpdate;
  if (!pass.states.has_value() && !pass.weights.has_value()) return absl::OkStatus();
  const auto change_part = [&](const Bucket& bucket, const FlatRange& part) -> absl::Status {
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      const FlatParameter& flat = layout_.parameters[i];
      const FlatRange range = Common(flat.range, part);
      if (range.size() == 0) continue;
      ParameterState state = WithoutTensors(flat, range);
      if (MastersFile() != nullptr) state.master = Masters(bucket, range);
      for (size_t s = 0; s < num_states() && state_file_ != nullptr; ++s)
        state.states.push_back(State(s, bucket, range));
      MEGATRON_RETURN_IF_ERROR(change(state));
    }
    return absl::OkStatus();
  };
  return PassOverFiles(pass, /*copies=*/false, change_part);
}

absl::Status ParameterBuffers::ReadMasters(const Bucket& bucket, int64_t begin,
                                           const Tensor& out) const {
  return MastersFile()->Read(0, MasterPosition(bucket, begin), out);
}

absl::Status ParameterBuffers::ReadState(size_t index, const Bucket& bucket, int64_t begin,
                                         const Tensor& out) const {
  return state_file_->Read(FileTensorOf(index), OptimizerPosition(bucket, begin), out);
}

absl::Status ParameterBuffers::ReadWeights(const Bucket& bucket, int64_t begin,
                                           const Tensor& out) const {
  return weight_file_->Read(0, WeightPosition(bucket, begin), out);
}

void ParameterBuffers::Fetch(StateFile* file, int64_t at, const Tensor& out, const Stream& stream) {
  for (int64_t done = 0, end = 0; done < out.numel(); done = end) {
    end = std::min(out.numel(), file->ExtentEnd(at + done) - at);
    const absl::StatusOr<Tensor> fetched = file->Fetch(0, at + done, at + end);
    if (!fetched.ok()) return;  // status() tells it
    Transport(stream, *fetched, out.Slice(0, done, end));
  }
}

void ParameterBuffers::CopyWeights(const Bucket& bucket, const FlatRange& range, const Tensor& out,
                                   const Stream& stream) const {
  if (weight_file_ == nullptr || weight_file_->in_pass())
    return Transport(stream, Weights(bucket, range), out);
  Fetch(weight_file_.get(), WeightPosition(bucket, range.begin), out, stream);
}

void ParameterBuffers::SetWeights(const Bucket& bucket, const FlatRange& range, const Tensor& in,
                                  const Stream& stream) const {
  if (weight_file_ == nullptr) return Transport(stream, in, Weights(bucket, range));
  FilePass pass;
  pass.weights = StateFile::Access::kUpdate;
  StartPass(pass);
  for (FlatRange part = {range.begin, 0}; part.begin < range.end; part.begin = part.end) {
    part.end = std::min(range.end, ExtentEnd(bucket, part.begin, /*in_pass=*/true));
    if (!EnterExtent(bucket, part).ok()) break;  // status() tells it
    Transport(stream, in.Slice(0, part.begin - range.begin, part.end - range.begin),
              Weights(bucket, part));
  }
  EndUpdate().IgnoreError();
}

void ParameterBuffers::InitializeFiles(uint64_t seed, ThreadPool* pool) {
  const auto fill = [&](const FilePass& pass, bool copies, const auto& tensor_of) {
    const auto fill_part = [&](const Bucket& bucket, const FlatRange& part) {
      std::vector<InitialPiece> pieces;
      for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
        const FlatParameter& flat = layout_.parameters[i];
        AppendInitialPieces(flat, Common(flat.range, part), &pieces);
      }
      pool->ParallelFor(pieces.size(), [&](int64_t begin, int64_t end) {
        std::vector<float> values;
        for (int64_t i = begin; i < end; ++i) {
          const InitialPiece& piece = pieces[i];
          values.resize(piece.range.size());
          const Tensor filled(values.data(), DType::kFloat32, {piece.range.size()});
          FillInitialPiece(piece, seed, filled);
          const FlatRange range = Common(piece.range, part);
          ops::Copy(Stream::Inline(),
                    filled.Slice(0, range.begin - piece.range.begin, range.end - piece.range.begin),
                    tensor_of(bucket, range));
        }
      });
      return absl::OkStatus();
    };
    PassOverFiles(pass, copies, fill_part).IgnoreError();  // status() tells it
  };
  FilePass masters, weights;
  masters.states = weights.weights = StateFile::Access::kWrite;
  if (has_masters() && state_file_ != nullptr) {
    fill(masters, /*copies=*/false,
         [&](const Bucket& bucket, const FlatRange& range) { return Masters(bucket, range); });
  }
  if (weight_file_ != nullptr) {
    fill(weights, /*copies=*/true,
         [&](const Bucket& bucket, const FlatRange& range) { return Weights(bucket, range); });
  }
}

}  // namespace megatron
