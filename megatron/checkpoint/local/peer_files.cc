#include "megatron/checkpoint/local/peer_files.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/shard_header.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;  // one request's limit
// The time that a rank without a request of its own lets the others wait.
constexpr std::chrono::microseconds kPatience(300);

Tensor BytesOf(std::string* text) {
  return Tensor(text->data(), DType::kUInt8, {static_cast<int64_t>(text->size())});
}

}  // namespace

// The holder has checked the file's header, which follows from the manifest.
class PeerFiles::RemoteFile : public RandomAccessFile {
 public:
  RemoteFile(PeerFiles* files, int holder, ShardHeader header)
      : files_(*files), holder_(holder), header_(std::move(header)) {}

  int64_t size() const override { return header_.file_bytes; }

  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    const int64_t bytes = static_cast<int64_t>(buffer.size());
    if (offset < 0 || offset + bytes > size())
      return absl::OutOfRangeError(absl::StrCat("the shard has ", size(), " bytes"));
    if (offset + bytes <= kShardHeaderBytes) {
      std::memcpy(buffer.data(), EncodeShardHeader(header_).data() + offset, buffer.size());
      return absl::OkStatus();
    }
    for (int64_t done = 0; done < bytes; done += kMostBytes) {
      MEGATRON_RETURN_IF_ERROR(files_.ReadRemote(
          holder_, header_.index, offset + done,
          buffer.subspan(static_cast<size_t>(done),
                         static_cast<size_t>(std::min(kMostBytes, bytes - done)))));
    }
    return absl::OkStatus();
  }

 private:
  PeerFiles& files_;
  const int holder_;
  const ShardHeader header_;
};

PeerFiles::PeerFiles(FileSystem& fs, LocalCheckpoint checkpoint, const std::vector<int>& machines,
                     int rank)
    : fs_(fs), checkpoint_(std::move(checkpoint)), rank_(rank) {
  const int own = machines[static_cast<size_t>(rank)];
  const size_t num_machines = DistinctMachines(machines).size();
  for (const std::vector<int>& ranks : checkpoint_.holders) {
    std::vector<int> with;
    for (const int holder : ranks) with.push_back(machines[static_cast<size_t>(holder)]);
    is_spread_ = is_spread_ || DistinctMachines(with).size() < num_machines;
    const bool here = std::find(with.begin(), with.end(), own) != with.end();
    // Ranks that need the same shard ask different holders.
    holders_.push_back(here ? rank : ranks[static_cast<size_t>(rank) % ranks.size()]);
  }
}

PeerFiles::~PeerFiles() { Finish(/*ok=*/false); }

CheckpointReader PeerFiles::OpenReader(const std::string& name) {
  return CheckpointReader::OfParts(name, checkpoint_.manifest,
                                   [this](int shard) { return OpenShard(shard); });
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> PeerFiles::OpenOwn(int shard) const {
  return fs_.OpenNoFollow(
      JoinPath(checkpoint_.directory, ShardFileName(shard, checkpoint_.manifest.shard_count)));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> PeerFiles::OpenShard(int shard) {
  const int holder = holders_[static_cast<size_t>(shard)];
  if (holder == rank_) return OpenOwn(shard);
  const Manifest& manifest = checkpoint_.manifest;
  return std::make_unique<RemoteFile>(
      this, holder,
      ShardHeader{manifest.run_id, manifest.iteration, shard, manifest.shard_count,
                  manifest.shards[static_cast<size_t>(shard)].bytes});
}

absl::Status PeerFiles::ReadRemote(int holder, int shard, int64_t offset, absl::Span<char> buffer) {
  std::unique_lock<std::mutex> lock(mutex_);
  CHECK(thread_.joinable()) << "the files of other machines are read between Start and Finish";
  CHECK(request_.kind == Request::kNothing) << "one thread reads";
  MEGATRON_RETURN_IF_ERROR(end_);
  request_ = {Request::kBytes, holder, shard, offset, static_cast<int64_t>(buffer.size())};
  buffer_ = buffer;
  answered_ = false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return answered_; });
  request_ = {};
  return answer_;
}

void PeerFiles::Start(const ProcessGroup& ranks) {
  ranks_ = ranks;
  thread_ = std::thread([this] { Serve(); });
}

void PeerFiles::Finish(bool ok) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    request_ = {ok ? Request::kDone : Request::kFailed, 0, 0, 0, 0};
    changed_.notify_all();
  }
  thread_.join();
  open_.clear();
}

PeerFiles::Request PeerFiles::NextRequest() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto asks = [this] { return request_.kind != Request::kNothing && !answered_; };
  if (request_.kind == Request::kDone) {
    changed_.wait_for(lock, kPatience);
  } else {
    changed_.wait_for(lock, kPatience, asks);
  }
  return request_.kind == Request::kBytes && answered_ ? Request() : request_;
}

void PeerFiles::EndRequest(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  answered_ = true;
  answer_ = status;
  changed_.notify_all();
}

// Each round begins with the requests of all ranks.
void PeerFiles::Serve() {
  absl::Status end = absl::AbortedError("another rank could not read its part");
  while (true) {
    Request mine = NextRequest();
    std::vector<Request> requests(static_cast<size_t>(ranks_.size()), mine);
    constexpr int64_t kNumbers = sizeof(Request) / sizeof(int64_t);
    ranks_.AllGather(Tensor(&mine, DType::kInt64, {kNumbers}),
                     Tensor(requests.data(), DType::kInt64, {ranks_.size() * kNumbers}),
                     Stream::Inline());
    if (!ranks_.status().ok()) {
      end = ranks_.status();
      break;
    }
    const auto is = [](int64_t kind) {
      return [kind](const Request& request) { return request.kind == kind; };
    };
    if (std::any_of(requests.begin(), requests.end(), is(Request::kFailed))) break;
    if (std::all_of(requests.begin(), requests.end(), is(Request::kDone))) return;
    const absl::Status answered = Answer(requests);
    if (!ranks_.status().ok()) {
      end = ranks_.status();
      break;
    }
    if (mine.kind == Request::kBytes) EndRequest(answered);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  end_ = end;
  answered_ = true;
  answer_ = end;
  changed_.notify_all();
}

absl::Status PeerFiles::Answer(const std::vector<Request>& requests) {
  std::vector<std::string> answers;
  answers.reserve(requests.size());
  std::vector<Transfer> sends, receives;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    const Request& request = requests[rank];
    if (request.kind != Request::kBytes || request.holder != rank_) continue;
    answers.push_back(ReadFor(request));
    sends.push_back({static_cast<int>(rank), BytesOf(&answers.back())});
  }
  const Request& mine = requests[static_cast<size_t>(rank_)];
  std::string received;
  if (mine.kind == Request::kBytes) {
    received.resize(static_cast<size_t>(mine.bytes) + 1);
    receives.push_back({static_cast<int>(mine.holder), BytesOf(&received)});
  }
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  ranks_.Exchange(sends, receives, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(ranks_.status());
  if (receives.empty()) return absl::OkStatus();
  if (received.back() != 1) {
    return absl::DataLossError(absl::StrCat("rank ", mine.holder, " could not read shard ",
                                            mine.shard, " of its local checkpoint"));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::memcpy(buffer_.data(), received.data(), buffer_.size());
  return absl::OkStatus();
}

std::string PeerFiles::ReadFor(const Request& request) {
  std::string bytes(static_cast<size_t>(request.bytes) + 1, '\0');
  std::unique_ptr<RandomAccessFile>& file = open_[static_cast<int>(request.shard)];
  if (file == nullptr) {
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> opened =
        OpenOwn(static_cast<int>(request.shard));
    if (!opened.ok()) return bytes;
    file = *std::move(opened);
  }
  const absl::Status read =
      file->ReadAt(request.offset, absl::MakeSpan(bytes).subspan(0, bytes.size() - 1));
  bytes.back() = read.ok() ? 1 : 0;
  return bytes;
}

}  // namespace megatron
