#include "megatron/data/tokenizer/pipeline/token_decoder.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"
#include "megatron/data/tokenizer/byte_piece.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// The space before each of these is removed, in this order.
constexpr std::pair<absl::string_view, absl::string_view> kCleanups[] = {
    {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
    {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
    {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};

}  // namespace

TokenDecoder ChainDecoders(std::vector<TokenDecoder> steps) {
  return [steps = std::move(steps)](std::vector<std::string>* pieces) {
    for (const TokenDecoder& step : steps) step(pieces);
  };
}

TokenDecoder ByteLevelDecoder() {
  return [](std::vector<std::string>* pieces) {
    for (std::string& piece : *pieces) {
      std::string bytes;
      if (AppendSpelledBytes(piece, &bytes)) piece = std::move(bytes);
    }
  };
}

TokenDecoder ByteFallbackDecoder() {
  return [](std::vector<std::string>* pieces) {
    std::vector<std::string> decoded;
    std::string run;
    const auto end_run = [&] {
      if (run.empty()) return;
      if (IsValidUtf8(run)) {
        decoded.push_back(run);
      } else {
        decoded.insert(decoded.end(), run.size(), "\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& piece : *pieces) {
      const int byte = ByteOfPiece(piece);
      if (byte >= 0) {
        run.push_back(static_cast<char>(byte));
      } else {
        end_run();
        decoded.push_back(std::move(piece));
      }
    }
    end_run();
    *pieces = std::move(decoded);
  };
}

TokenDecoder FuseDecoder() {
  return [](std::vector<std::string>* pieces) { *pieces = {absl::StrJoin(*pieces, "")}; };
}

TokenDecoder ReplaceDecoder(std::string pattern, std::string content) {
  return [pattern = std::move(pattern),
          content = std::move(content)](std::vector<std::string>* pieces) {
    for (std::string& piece : *pieces) absl::StrReplaceAll({{pattern, content}}, &piece);
  };
}

TokenDecoder StripDecoder(std::string content, int start, int stop) {
  return [content = std::move(content), start, stop](std::vector<std::string>* pieces) {
    for (std::string& piece : *pieces) {
      absl::string_view rest = piece;
      for (int i = 0; i < start && absl::ConsumePrefix(&rest, content); ++i) {
      }
      for (int i = 0; i < stop && absl::ConsumeSuffix(&rest, content); ++i) {
      }
      piece = std::string(rest);
    }
  };
}

TokenDecoder MetaspaceDecoder(std::string replacement, bool prefixed) {
  return [replacement = std::move(replacement), prefixed](std::vector<std::string>* pieces) {
    for (size_t i = 0; i < pieces->size(); ++i) {
      const char* const space = i == 0 && prefixed ? "" : " ";
      absl::StrReplaceAll({{replacement, space}}, &(*pieces)[i]);
    }
  };
}

TokenDecoder WordPieceDecoder(std::string prefix, bool cleanup) {
  return [prefix = std::move(prefix), cleanup](std::vector<std::string>* pieces) {
    for (size_t i = 0; i < pieces->size(); ++i) {
      std::string& piece = (*pieces)[i];
      if (i > 0) {
        absl::string_view rest = piece;
        piece = absl::ConsumePrefix(&rest, prefix) ? std::string(rest) : " " + piece;
      }
      if (!cleanup) continue;
      for (const auto& [from, to] : kCleanups) absl::StrReplaceAll({{from, to}}, &piece);
    }
  };
}

}  // namespace megatron
