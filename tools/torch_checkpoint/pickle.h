// Reads Python pickles as data. Nothing that a pickle asks to call is called: a call becomes a
// value that names the function and its arguments, and an object one that names its class and its
// state. So what an attacker wrote can at most be something else than what the caller expects.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_PICKLE_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_PICKLE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,  // also an integer of more than 64 bits
    kTuple,
    kList,
    kSet,
    kDict,
    kGlobal,      // a function or class, whose name is `text`: "torch.Size"
    kObject,      // the result of a call
    kPersistent,  // what the file has elsewhere: items[0] says which
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;  // of kBool and kInt
  double number = 0;    // of kFloat
  std::string text;     // of kText, kBytes and kGlobal
  // Of kTuple, kList and kSet; of kObject what was appended to it.
  std::vector<const PickleValue*> items;
  // Of kDict, in the order of the file; of kObject what was put into it.
  std::vector<std::pair<const PickleValue*, const PickleValue*>> entries;
  // Of kObject: what was called, with which arguments, and the state that was set; each may be
  // null.
  const PickleValue* callable = nullptr;
  const PickleValue* arguments = nullptr;
  const PickleValue* state = nullptr;

  bool is(Kind k) const { return kind == k; }
  // Returns whether it is a call of the function or class of this name.
  bool IsCall(absl::string_view name) const {
    return kind == Kind::kObject && callable != nullptr && callable->kind == Kind::kGlobal &&
           callable->text == name;
  }
  // Returns the value under a key that is a text: of a dict, or of the dict that is an object's
  // state. Null where there is none.
  const PickleValue* Get(absl::string_view key) const;
};

class Pickle {
 public:
  // kDataLoss for what is no pickle of the protocols 2 to 5. It takes time and memory in proportion
  // to the bytes.
  static absl::StatusOr<Pickle> Parse(absl::string_view bytes);

  // Values may contain themselves. They live as long as this, wherever it is moved.
  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleMachine;

  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_PICKLE_H_
