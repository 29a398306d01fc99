#include "tools/torch_checkpoint/pickle.h"

#include <cstring>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {

using Kind = PickleValue::Kind;

const PickleValue* PickleValue::Get(absl::string_view key) const {
  if (kind == Kind::kObject && state != nullptr && state->kind == Kind::kDict)
    return state->Get(key);
  for (const auto& [name, value] : entries) {
    if (name->kind == Kind::kText && name->text == key) return value;
  }
  return nullptr;
}

// The machine that a pickle is a program of: a stack of values and a numbered memory.
class PickleMachine {
 public:
  explicit PickleMachine(absl::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  absl::StatusOr<Pickle> Run() {
    while (pickle_.root_ == nullptr) {
      MEGATRON_ASSIGN_OR_RETURN(const uint64_t op, TakeNumber(1));
      MEGATRON_RETURN_IF_ERROR(Step(static_cast<char>(op)));
    }
    return std::move(pickle_);
  }

 private:
  absl::Status Broken(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("no pickle that is read: ", what, " at byte ", size_ - rest_.size()));
  }

  // Operands.

  absl::StatusOr<absl::string_view> Take(uint64_t size) {
    if (size > rest_.size()) return Broken("it is cut off");
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  absl::StatusOr<uint64_t> TakeNumber(int size) {
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    uint64_t number = 0;
    for (int i = size; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
    return number;
  }
  absl::StatusOr<absl::string_view> TakeSized(int size) {
    MEGATRON_ASSIGN_OR_RETURN(const uint64_t length, TakeNumber(size));
    return Take(length);
  }
  absl::StatusOr<absl::string_view> TakeLine() {
    const size_t end = rest_.find('\n');
    if (end == absl::string_view::npos) return Broken("a line has no end");
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view line, Take(end + 1));
    return line.substr(0, end);
  }

  // The stack.

  PickleValue* New(Kind kind) {
    pickle_.values_.emplace_back();
    pickle_.values_.back().kind = kind;
    return &pickle_.values_.back();
  }
  absl::Status Push(PickleValue* value) {
    stack_.push_back(value);
    return absl::OkStatus();
  }
  absl::Status PushText(Kind kind, absl::string_view text) {
    PickleValue* const value = New(kind);
    value->text = std::string(text);
    return Push(value);
  }
  absl::Status PushInt(Kind kind, int64_t integer) {
    PickleValue* const value = New(kind);
    value->integer = integer;
    return Push(value);
  }
  absl::StatusOr<PickleValue*> Pop() {
    // What lies below a mark is not there for an operation that does not take the mark.
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      return Broken("the stack is empty");
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  absl::StatusOr<PickleValue*> Top() {
    MEGATRON_ASSIGN_OR_RETURN(PickleValue* const value, Pop());
    stack_.push_back(value);
    return value;
  }
  absl::StatusOr<std::vector<PickleValue*>> PopToMark() {
    if (marks_.empty()) return Broken("there is no mark");
    std::vector<PickleValue*> values(stack_.begin() + static_cast<int64_t>(marks_.back()),
                                     stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  absl::StatusOr<std::vector<PickleValue*>> PopSome(size_t count) {
    std::vector<PickleValue*> values(count);
    for (size_t i = count; i-- > 0;) {
      MEGATRON_ASSIGN_OR_RETURN(values[i], Pop());
    }
    return values;
  }

  // Operations.

  absl::Status PushTuple(absl::StatusOr<std::vector<PickleValue*>> items) {
    MEGATRON_RETURN_IF_ERROR(items.status());
    PickleValue* const tuple = New(Kind::kTuple);
    tuple->items.assign(items->begin(), items->end());
    return Push(tuple);
  }
  absl::Status Append(absl::StatusOr<std::vector<PickleValue*>> items) {
    MEGATRON_RETURN_IF_ERROR(items.status());
    MEGATRON_ASSIGN_OR_RETURN(PickleValue* const to, Top());
    if (!to->is(Kind::kList) && !to->is(Kind::kSet) && !to->is(Kind::kObject))
      return Broken("something is appended to what is no list");
    to->items.insert(to->items.end(), items->begin(), items->end());
    return absl::OkStatus();
  }
  absl::Status Put(absl::StatusOr<std::vector<PickleValue*>> items) {
    MEGATRON_RETURN_IF_ERROR(items.status());
    MEGATRON_ASSIGN_OR_RETURN(PickleValue* const to, Top());
    if ((!to->is(Kind::kDict) && !to->is(Kind::kObject)) || items->size() % 2 != 0)
      return Broken("keys and values are put into what is no dict, or not in pairs");
    for (size_t i = 0; i < items->size(); i += 2)
      to->entries.emplace_back((*items)[i], (*items)[i + 1]);
    return absl::OkStatus();
  }
  // Calls what lies on the stack below the arguments.
  absl::Status Call(size_t operands) {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<PickleValue*> values, PopSome(operands));
    PickleValue* const object = New(Kind::kObject);
    object->callable = values[0];
    object->arguments = values[1];
    return Push(object);
  }
  absl::Status Build() {
    MEGATRON_ASSIGN_OR_RETURN(PickleValue* const state, Pop());
    MEGATRON_ASSIGN_OR_RETURN(PickleValue* const object, Top());
    if (!object->is(Kind::kObject)) return Broken("what is no object gets a state");
    object->state = state;
    return absl::OkStatus();
  }
  absl::Status PushGlobal(absl::string_view module, absl::string_view name) {
    return PushText(Kind::kGlobal, absl::StrCat(module, ".", name));
  }
  absl::Status PushGlobalOfStack() {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<PickleValue*> names, PopSome(2));
    if (!names[0]->is(Kind::kText) || !names[1]->is(Kind::kText))
      return Broken("a name is no text");
    return PushGlobal(names[0]->text, names[1]->text);
  }
  absl::Status PushLong(absl::string_view bytes) {
    if (bytes.size() > 8) return PushText(Kind::kBytes, bytes);
    uint64_t number = 0;
    for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
    const size_t bits = 8 * bytes.size();
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    if (negative && bits < 64) number |= ~uint64_t{0} << bits;
    int64_t integer;
    std::memcpy(&integer, &number, sizeof(integer));
    return PushInt(Kind::kInt, integer);
  }
  absl::Status PushFloat() {
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(8));
    uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<uint8_t>(byte);
    PickleValue* const value = New(Kind::kFloat);
    std::memcpy(&value->number, &bits, sizeof(bits));
    return Push(value);
  }
  absl::Status Remember(uint64_t place) {
    MEGATRON_ASSIGN_OR_RETURN(memory_[place], Top());
    return absl::OkStatus();
  }
  absl::Status Recall(absl::StatusOr<uint64_t> place) {
    MEGATRON_RETURN_IF_ERROR(place.status());
    const auto found = memory_.find(*place);
    if (found == memory_.end()) return Broken("nothing was remembered there");
    return Push(found->second);
  }

  absl::Status Step(char op) {
    switch (op) {
      case '\x80': {  // PROTO
        MEGATRON_ASSIGN_OR_RETURN(const uint64_t protocol, TakeNumber(1));
        return protocol >= 2 && protocol <= 5 ? absl::OkStatus() : Broken("another protocol");
      }
      case '\x95':  // FRAME
        return TakeNumber(8).status();
      case '.': {  // STOP
        MEGATRON_ASSIGN_OR_RETURN(pickle_.root_, Pop());
        return absl::OkStatus();
      }
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case '0':  // POP
        return Pop().status();
      case '1':  // POP_MARK
        return PopToMark().status();
      case '2': {  // DUP
        MEGATRON_ASSIGN_OR_RETURN(PickleValue* const value, Top());
        return Push(value);
      }
      case 'N':  // NONE
        return Push(New(Kind::kNone));
      case '\x88':  // NEWTRUE
      case '\x89':  // NEWFALSE
        return PushInt(Kind::kBool, op == '\x88');
      default:
        return StepOfNumber(op);
    }
  }

  absl::Status StepOfNumber(char op) {
    switch (op) {
      case 'J': {  // BININT
        MEGATRON_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(4));
        return PushInt(Kind::kInt, static_cast<int32_t>(static_cast<uint32_t>(number)));
      }
      case 'K':    // BININT1
      case 'M': {  // BININT2
        MEGATRON_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(op == 'K' ? 1 : 2));
        return PushInt(Kind::kInt, static_cast<int64_t>(number));
      }
      case '\x8a':    // LONG1
      case '\x8b': {  // LONG4
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, TakeSized(op == '\x8a' ? 1 : 4));
        return PushLong(bytes);
      }
      case 'G':  // BINFLOAT
        return PushFloat();
      default:
        return StepOfText(op);
    }
  }

  absl::Status StepOfText(char op) {
    switch (op) {
      case '\x8c':    // SHORT_BINUNICODE
      case 'X':       // BINUNICODE
      case '\x8d': {  // BINUNICODE8
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view text, TakeSized(op == 'X'      ? 4
                                                                          : op == '\x8c' ? 1
                                                                                         : 8));
        return PushText(Kind::kText, text);
      }
      case 'U':       // SHORT_BINSTRING
      case 'C':       // SHORT_BINBYTES
      case 'T':       // BINSTRING
      case 'B':       // BINBYTES
      case '\x8e':    // BINBYTES8
      case '\x96': {  // BYTEARRAY8
        const int size = op == 'U' || op == 'C' ? 1 : op == 'T' || op == 'B' ? 4 : 8;
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view text, TakeSized(size));
        return PushText(op == 'U' || op == 'T' ? Kind::kText : Kind::kBytes, text);
      }
      case 'c': {  // GLOBAL
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view module, TakeLine());
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view name, TakeLine());
        return PushGlobal(module, name);
      }
      case '\x93':  // STACK_GLOBAL
        return PushGlobalOfStack();
      default:
        return StepOfCollection(op);
    }
  }

  absl::Status StepOfCollection(char op) {
    switch (op) {
      case ']':  // EMPTY_LIST
        return Push(New(Kind::kList));
      case '}':  // EMPTY_DICT
        return Push(New(Kind::kDict));
      case '\x8f':  // EMPTY_SET
        return Push(New(Kind::kSet));
      case ')':  // EMPTY_TUPLE
        return Push(New(Kind::kTuple));
      case '\x85':  // TUPLE1
      case '\x86':  // TUPLE2
      case '\x87':  // TUPLE3
        return PushTuple(PopSome(static_cast<size_t>(op - '\x84')));
      case 't':     // TUPLE
      case '\x91':  // FROZENSET
        return PushTuple(PopToMark());
      case 'a':  // APPEND
        return Append(PopSome(1));
      case 'e':     // APPENDS
      case '\x90':  // ADDITEMS
        return Append(PopToMark());
      case 's':  // SETITEM
        return Put(PopSome(2));
      case 'u':  // SETITEMS
        return Put(PopToMark());
      default:
        return StepOfObject(op);
    }
  }

  absl::Status StepOfObject(char op) {
    switch (op) {
      case 'R':     // REDUCE
      case '\x81':  // NEWOBJ
        return Call(2);
      case '\x92':  // NEWOBJ_EX
        return Call(3);
      case 'b':  // BUILD
        return Build();
      case 'Q': {  // BINPERSID
        MEGATRON_ASSIGN_OR_RETURN(PickleValue* const id, Pop());
        PickleValue* const value = New(Kind::kPersistent);
        value->items = {id};
        return Push(value);
      }
      case '\x94':  // MEMOIZE
        return Remember(memory_.size());
      case 'q':    // BINPUT
      case 'r': {  // LONG_BINPUT
        MEGATRON_ASSIGN_OR_RETURN(const uint64_t place, TakeNumber(op == 'q' ? 1 : 4));
        return Remember(place);
      }
      case 'h':  // BINGET
        return Recall(TakeNumber(1));
      case 'j':  // LONG_BINGET
        return Recall(TakeNumber(4));
      default:
        return Broken(absl::StrCat("operation ", static_cast<int>(static_cast<uint8_t>(op))));
    }
  }

  absl::string_view rest_;
  const size_t size_;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint64_t, PickleValue*> memory_;
};

absl::StatusOr<Pickle> Pickle::Parse(absl::string_view bytes) { return PickleMachine(bytes).Run(); }

}  // namespace megatron
