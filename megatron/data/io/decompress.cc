#include "megatron/data/io/decompress.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "zlib.h"
#include "zstd.h"

namespace megatron {
namespace {

constexpr size_t kInputBytes = size_t{1} << 16;
constexpr size_t kMagicBytes = 4;
constexpr size_t kMostZstdHeaderBytes = 18;

bool IsGzip(absl::string_view head) { return absl::StartsWith(head, "\x1f\x8b"); }

// Returns whether the input begins with a frame, or with one of the skippable frames that parallel
// compressors write first.
bool IsZstd(absl::string_view head) {
  if (head.size() < kMagicBytes) return false;
  return absl::StartsWith(head, "\x28\xb5\x2f\xfd") ||
         ((static_cast<unsigned char>(head[0]) & 0xf0) == 0x50 &&
          head.substr(1, 3) == "\x2a\x4d\x18");
}

// A source that allows looking at the next bytes before consuming them.
class BufferedInput {
 public:
  BufferedInput(std::string name, std::unique_ptr<ByteSource> source)
      : name_(std::move(name)), source_(std::move(source)), buffer_(kInputBytes) {}

  // The bytes that were read and not yet consumed.
  absl::string_view data() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void Consume(size_t count) { begin_ += count; }
  // Returns whether the source has reached its end; data() may still hold bytes.
  bool at_end() const { return at_end_; }
  int64_t stored_bytes_read() const { return source_->stored_bytes_read(); }

  // Makes data() hold at least `count` bytes, or fewer if the input ends.
  absl::Status Fill(size_t count) {
    while (end_ - begin_ < count && !at_end_) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
      MEGATRON_ASSIGN_OR_RETURN(const size_t read,
                                source_->Read(absl::MakeSpan(buffer_).subspan(end_)));
      end_ += read;
      at_end_ = read == 0;
    }
    return absl::OkStatus();
  }

  absl::Status Damaged(absl::string_view problem) const {
    return absl::DataLossError(
        absl::StrCat("'", name_, "', near byte ", stored_bytes_read(), ": ", problem));
  }

 private:
  const std::string name_;
  const std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
};

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(std::unique_ptr<BufferedInput> input) : input_(std::move(input)) {}

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    MEGATRON_RETURN_IF_ERROR(input_->Fill(1));
    const size_t count = std::min(buffer.size(), input_->data().size());
    std::memcpy(buffer.data(), input_->data().data(), count);
    input_->Consume(count);
    return count;
  }

  int64_t stored_bytes_read() const override { return input_->stored_bytes_read(); }

 private:
  const std::unique_ptr<BufferedInput> input_;
};

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<BufferedInput> input) : input_(std::move(input)) {
    constexpr int kGzipOnly = 16;
    CHECK_EQ(inflateInit2(&stream_, MAX_WBITS + kGzipOnly), Z_OK);
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    while (true) {
      if (between_members_) {
        MEGATRON_ASSIGN_OR_RETURN(const bool more, StartMember());
        if (!more) return 0;
      }
      MEGATRON_RETURN_IF_ERROR(input_->Fill(1));
      MEGATRON_ASSIGN_OR_RETURN(const size_t count, Inflate(buffer));
      if (count > 0) return count;
    }
  }

  int64_t stored_bytes_read() const override { return input_->stored_bytes_read(); }

 private:
  // Moves to the next compressed file; returns false at the end. Zeros are skipped: they may fill
  // up the last block of a tape or a disk.
  absl::StatusOr<bool> StartMember() {
    MEGATRON_RETURN_IF_ERROR(input_->Fill(2));
    while (!input_->data().empty() && input_->data()[0] == '\0') {
      input_->Consume(1);
      MEGATRON_RETURN_IF_ERROR(input_->Fill(2));
    }
    if (input_->data().empty()) return false;
    if (!IsGzip(input_->data())) return input_->Damaged("something follows the gzip data");
    CHECK_EQ(inflateReset(&stream_), Z_OK);
    between_members_ = false;
    return true;
  }

  absl::StatusOr<size_t> Inflate(absl::Span<char> buffer) {
    const absl::string_view data = input_->data();
    const uInt room =
        static_cast<uInt>(std::min<size_t>(buffer.size(), std::numeric_limits<uInt>::max()));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
    stream_.avail_in = static_cast<uInt>(data.size());
    stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream_.avail_out = room;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    input_->Consume(data.size() - stream_.avail_in);
    const size_t count = room - stream_.avail_out;
    if (result == Z_STREAM_END) {
      between_members_ = true;
    } else if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError("no memory to decompress with");
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return input_->Damaged(absl::StrCat(
          "damaged gzip data: ", stream_.msg == nullptr ? "a dictionary is missing" : stream_.msg));
    } else if (count == 0 && data.empty()) {
      return input_->Damaged("the gzip data ends too early; is the file cut off?");
    }
    return count;
  }

  const std::unique_ptr<BufferedInput> input_;
  z_stream stream_ = {};
  bool between_members_ = false;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<BufferedInput> input)
      : input_(std::move(input)), context_(ZSTD_createDCtx()) {
    CHECK(context_ != nullptr);
  }
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    while (true) {
      if (!output_waits_) {
        MEGATRON_RETURN_IF_ERROR(input_->Fill(1));
        if (input_->data().empty()) {
          if (!in_frame_) return 0;
          return input_->Damaged("the zstd data ends too early; is the file cut off?");
        }
      }
      MEGATRON_ASSIGN_OR_RETURN(const size_t count, DecompressSome(buffer));
      if (count > 0) return count;
    }
  }

  int64_t stored_bytes_read() const override { return input_->stored_bytes_read(); }

 private:
  // Reads the content size from the header of the frame that begins here.
  absl::Status StartFrame() {
    MEGATRON_RETURN_IF_ERROR(input_->Fill(kMostZstdHeaderBytes));
    const absl::string_view data = input_->data();
    frame_bytes_ = ZSTD_getFrameContentSize(data.data(), data.size());
    read_of_frame_ = stored_of_frame_ = 0;
    return absl::OkStatus();
  }

  // Reports a frame that ends too early. When reading piece by piece, the library misses this if
  // the frame's last block is empty.
  absl::Status CheckFrame() const {
    const bool says =
        frame_bytes_ != ZSTD_CONTENTSIZE_UNKNOWN && frame_bytes_ != ZSTD_CONTENTSIZE_ERROR;
    if (!says || read_of_frame_ == frame_bytes_) return absl::OkStatus();
    return input_->Damaged(absl::StrCat("damaged zstd data: a frame of ", frame_bytes_,
                                        " bytes holds ", read_of_frame_));
  }

  absl::StatusOr<size_t> DecompressSome(absl::Span<char> buffer) {
    if (!in_frame_) {
      MEGATRON_RETURN_IF_ERROR(StartFrame());
    }
    // The library decodes a frame that it is given whole by another code path, and each of the two
    // paths finds damage that the other misses. Feeding single bytes up to the longest possible
    // header makes sure that no frame is ever given whole.
    const bool in_header = stored_of_frame_ < kMostZstdHeaderBytes;
    const size_t given =
        in_header ? std::min<size_t>(input_->data().size(), 1) : input_->data().size();
    ZSTD_inBuffer in = {input_->data().data(), given, 0};
    ZSTD_outBuffer out = {buffer.data(), buffer.size(), 0};
    const size_t result = ZSTD_decompressStream(context_, &out, &in);
    if (ZSTD_isError(result) != 0)
      return input_->Damaged(absl::StrCat("damaged zstd data: ", ZSTD_getErrorName(result)));
    input_->Consume(in.pos);
    stored_of_frame_ += in.pos;
    in_frame_ = result != 0;
    read_of_frame_ += out.pos;
    if (!in_frame_) {
      MEGATRON_RETURN_IF_ERROR(CheckFrame());
    }
    // If the buffer is full, the library may hold more output.
    output_waits_ = in_frame_ && out.pos == out.size;
    return out.pos;
  }

  const std::unique_ptr<BufferedInput> input_;
  ZSTD_DCtx* const context_;
  bool in_frame_ = false;
  uint64_t frame_bytes_ = 0;  // one of the library's two special values if unknown
  uint64_t read_of_frame_ = 0, stored_of_frame_ = 0;
  bool output_waits_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> Decompress(const std::string& name,
                                                       std::unique_ptr<ByteSource> source) {
  auto input = std::make_unique<BufferedInput>(name, std::move(source));
  MEGATRON_RETURN_IF_ERROR(input->Fill(kMagicBytes));
  const bool gzip = IsGzip(input->data()), zstd = IsZstd(input->data());
  if (absl::EndsWith(name, ".gz") && !gzip)
    return input->Damaged("the name ends in .gz, but this is no gzip data");
  if (absl::EndsWith(name, ".zst") && !zstd)
    return input->Damaged("the name ends in .zst, but this is no zstd data");
  if (gzip) return std::make_unique<GzipSource>(std::move(input));
  if (zstd) return std::make_unique<ZstdSource>(std::move(input));
  return std::make_unique<PlainSource>(std::move(input));
}

}  // namespace megatron
