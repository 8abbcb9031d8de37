// Reductions whose terms each count for one element, by blocks of elements that list their terms.
#pragma once
#include <source_location>

#include "dsl/schedule.h"

namespace tw {

/// For how many neighbouring elements terms are listed together, of how many terms at a time.
struct ListOptions {
    int64_t elements = 16;
    int64_t terms = 2048;
};

/// The stages that list_terms() makes: which of a block's elements each term counts for, if any; how many terms of a
/// chunk a block has; the list of them; what fills it; and one of its entries, as each element reads it.
struct ListedTerms {
    Stage element, count, list, updates, entry;
};

/// Each block of elements lists, of a chunk of terms at a time, those that count for any of them, in their order. An
/// element goes through the chunks, the list of its block, and combines its own: to the same bits as declared. Its
/// reduce loops are `chunk`, `t`, as many iterations as the list has entries, and `own`, one of an entry of its own.
///
///     ListedTerms lists = list_terms(s, d, {.elements = 16, .terms = 2048});
///     auto [i, j] = s.loops<2>(d);
///     auto [block, row] = s.split(i, 16, Tail::Mask, {"block", "row"});
///     const Loop chunk = s.reduce(d, 0), t = s.reduce(d, 1), own = s.reduce(d, 2);
///     s.order({block, chunk, j, t, row, own});
///     s.at(lists.entry, t);
///     s.at(lists.list, chunk);                       // with what fills it, in shared memory
///     s.at(lists.count, chunk);
///
/// Throws Error if the reduction does not scatter (Schedule::scatters), if its loops were touched, if the numbers of
/// its terms and elements are no constants, or if terms x elements of a block are 2^32 or more.
ListedTerms list_terms(Schedule& s, const StageRef& reduction, const ListOptions& options = {},
                       std::source_location where = std::source_location::current());

}  // namespace tw
