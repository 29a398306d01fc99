// The page of a server of texts, on which a person can try its model.
#ifndef MEGATRON_SERVE_SERVE_PAGE_H_
#define MEGATRON_SERVE_SERVE_PAGE_H_

namespace megatron::serve {

// HTML that needs nothing of another place.
extern const char kServePage[];

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_SERVE_PAGE_H_
