#include "megatron/data/io/line_batches.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineBatchReader::LineBatchReader(std::vector<std::string> paths, Opener open,
                                 const Options& options)
    : paths_(std::move(paths)), open_(std::move(open)), options_(options) {}

absl::StatusOr<bool> LineBatchReader::Next(LineBatch* batch) {
  batch->lines.clear();
  while (batch->lines.empty()) {
    if (source_ == nullptr) {
      if (next_path_ == paths_.size()) return false;
      MEGATRON_RETURN_IF_ERROR(OpenNext());
    }
    batch->path = paths_[next_path_ - 1];
    batch->first_line = next_line_;
    std::swap(batch->buffer, carry_);
    carry_.clear();
    line_begin_ = 0;
    bool more = true;
    while (more && batch->lines.empty()) {
      MEGATRON_RETURN_IF_ERROR(CheckStop());
      const size_t old_size = batch->buffer.size();
      MEGATRON_ASSIGN_OR_RETURN(more, ReadMore(&batch->buffer));
      if (dropping_line_) DropLongLine(&batch->buffer);
      Cut(old_size, batch);
      // A byte order mark is dropped, so it does not count.
      const bool too_long =
          batch->buffer.size() - line_begin_ > options_.max_line_bytes + kByteOrderMark.size();
      if ((!more && line_begin_ < batch->buffer.size()) || (batch->lines.empty() && too_long)) {
        AddLine(absl::string_view(batch->buffer).substr(line_begin_), batch);
        line_begin_ = batch->buffer.size();
        dropping_line_ = more;
      }
    }
    carry_.assign(batch->buffer, line_begin_, std::string::npos);
    batch->stored_bytes_read = stored_bytes_before_ + source_->stored_bytes_read();
    if (!more) {
      stored_bytes_before_ = batch->stored_bytes_read;
      source_ = nullptr;
    }
  }
  return true;
}

absl::Status LineBatchReader::OpenNext() {
  MEGATRON_RETURN_IF_ERROR(CheckStop());
  const std::atomic<bool>* const stop = options_.stop != nullptr ? options_.stop : &stopped_;
  MEGATRON_ASSIGN_OR_RETURN(source_, open_(paths_[next_path_], stop));
  ++next_path_;
  next_line_ = 1;
  dropping_line_ = false;
  return absl::OkStatus();
}

absl::Status LineBatchReader::CheckStop() const {
  const bool stop = stopped_ || (options_.stop != nullptr && *options_.stop);
  return stop ? absl::CancelledError("reading was stopped") : absl::OkStatus();
}

void LineBatchReader::DropLongLine(std::string* buffer) {
  const size_t end = buffer->find('\n');
  dropping_line_ = end == std::string::npos;
  buffer->erase(0, dropping_line_ ? end : end + 1);
}

absl::StatusOr<bool> LineBatchReader::ReadMore(std::string* buffer) {
  const size_t old_size = buffer->size();
  size_t end = old_size;
  buffer->resize(old_size + options_.batch_bytes);
  bool more = true;
  while (more && end < buffer->size()) {
    MEGATRON_ASSIGN_OR_RETURN(const size_t count,
                              source_->Read(absl::MakeSpan(*buffer).subspan(end)));
    end += count;
    more = count > 0;
  }
  buffer->resize(end);
  return more;
}

void LineBatchReader::Cut(size_t search_from, LineBatch* batch) {
  const absl::string_view text = batch->buffer;
  for (size_t end = text.find('\n', search_from); end != text.npos;
       end = text.find('\n', line_begin_)) {
    AddLine(text.substr(line_begin_, end - line_begin_), batch);
    line_begin_ = end + 1;
  }
}

void LineBatchReader::AddLine(absl::string_view text, LineBatch* batch) {
  if (next_line_ == 1 && absl::StartsWith(text, kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  LineBatch::Line line;
  line.too_long = text.size() > options_.max_line_bytes;
  if (!line.too_long) line.text = text;
  batch->lines.push_back(line);
  ++next_line_;
}

}  // namespace megatron
