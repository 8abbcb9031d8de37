// Decoding with keys and values in pages (paged attention; Kwon et al. 2023): sequences have any lengths, and a table
// says in which pages theirs are.
#pragma once
#include <optional>
#include <string>

#include "schedules/attention_decode.h"

namespace tw::schedules {

/// q is [batch, 1, heads, depth], k [pages, page_size, heads / group, depth], v [pages, page_size, heads / group,
/// width]; table, i32 [batch, keys / page_size], holds the numbers of a sequence's pages, in their order, and lengths,
/// i32 [batch], how many keys it has, from 0 to `keys`. Entries of the table behind the last page are not read.
struct PagedShape {
    AttentionShape attention;  ///< of one row; its keys: the most of a sequence, whole pages
    int64_t pages, page_size;
};

/// AttentionInParts, as decoding has it, of the keys that lengths say, of which tiles of `step` are read: what a page
/// holds behind the last key counts 0 times, so it is finite. A sequence without keys has o = 0 and lse = -infinity.
struct PagedAttention {
    Tensor table, lengths;
    AttentionInParts parts;
};
DecodeTiles paged_tiles(const PagedShape& shape, const Target& target);
/// Rules as of declare_attention_in_parts: the row stands at the last key of its sequence. Throws Error unless pages
/// are a multiple of the tiles' steps, and of 16, and keys whole pages; or as declare_attention_in_parts.
PagedAttention declare_paged_attention(const PagedShape& shape, const DecodeTiles& tiles,
                                       const AttentionRules& rules = {}, TW_HERE);
/// For sm_90a: as decode_schedule, each part with as many steps as its sequence has keys for it.
Schedule paged_schedule(const PagedAttention& attention, const PagedShape& shape, const DecodeTiles& tiles,
                        const Target& target, TW_HERE);

struct NamedPaged {
    PagedShape shape;
    std::string rules = {};  ///< as the name lists them
};
/// Reads "attention_paged_bf16_BATCHxHEADSxKEYSxDEPTH" (or f16) with _page64, then any of _pages1000 (else as many as
/// all sequences can have), _width64 (else depth), _group4, rules (_softcap30, _softcap30a, _alibi, _window1024), and
/// _sinks. Nothing if it is no such name.
std::optional<NamedPaged> parse_paged(const std::string& name);

}  // namespace tw::schedules
