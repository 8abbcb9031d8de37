// Steps that nobody has written.
#pragma once

namespace tw {

/// While it lives, steps that this thread takes, or reads from a trace, are told as `found by search`, behind the line
/// of whoever asked a library function for the schedule (CalledFrom): no line of this library's says anything about
/// them.
class FoundBySearch {
public:
    FoundBySearch();
    ~FoundBySearch();
    FoundBySearch(const FoundBySearch&) = delete;
    FoundBySearch& operator=(const FoundBySearch&) = delete;
};

}  // namespace tw
