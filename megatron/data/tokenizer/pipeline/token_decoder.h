// How the spellings of tokens become text again.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_

#include <functional>
#include <string>
#include <vector>

namespace megatron {

// A step that changes spellings; the text is what they are put together after the last step.
using TokenDecoder = std::function<void(std::vector<std::string>* pieces)>;

TokenDecoder ChainDecoders(std::vector<TokenDecoder> steps);

// Letters that stand for bytes (byte_level_alphabet.h). A token that is not spelled so stays.
TokenDecoder ByteLevelDecoder();

// Runs of "<0x0A>" become their bytes where those are UTF-8, else U+FFFD for each.
TokenDecoder ByteFallbackDecoder();

// All pieces become one.
TokenDecoder FuseDecoder();

// In each piece. `pattern` is not empty.
TokenDecoder ReplaceDecoder(std::string pattern, std::string content);

// Takes up to `start` and `stop` times `content`, one character, off the ends of each piece.
TokenDecoder StripDecoder(std::string content, int start, int stop);

// Spaces for `replacement`, one character; nothing for those of the first piece if `prefixed`.
TokenDecoder MetaspaceDecoder(std::string replacement, bool prefixed);

// Joins words, whose pieces but the first begin with `prefix`, with spaces between; `cleanup` takes
// the space before punctuation and English contractions away.
TokenDecoder WordPieceDecoder(std::string prefix, bool cleanup);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_
