#include "tools/fuzz/prove_equivalent.h"

#include <fmt/format.h>

namespace tw::fuzz {

EquivalenceProver::EquivalenceProver(const codegen::ThreadKernel& original, const Bindings& sizes)
    : sizes_(sizes), original_(run_symbolically(terms_, original, sizes)) {}

Comparison EquivalenceProver::compare(const codegen::ThreadKernel& mutant) {
    using Outcome = Comparison::Outcome;
    if (auto reason = std::get_if<Undecided>(&original_)) return {Outcome::Unknown, reason->text};
    if (auto finding = std::get_if<Misuse>(&original_)) return {Outcome::Misuse, finding->text};
    auto got = run_symbolically(terms_, mutant, sizes_);
    if (auto reason = std::get_if<Undecided>(&got)) return {Outcome::Unknown, reason->text};
    if (auto finding = std::get_if<Misuse>(&got)) return {Outcome::Misuse, finding->text};
    const Stored &expected = std::get<Stored>(original_), &stored = std::get<Stored>(got);
    int64_t elements = 0;
    for (const auto& [name, terms] : expected) {
        const std::vector<Term>& other = stored.at(name);
        for (size_t e = 0; e < terms.size(); ++e, ++elements)
            if (terms[e] != other[e])
                return {Outcome::Different, fmt::format("element {} of '{}' is another term", e, name)};
    }
    return {Outcome::Same, fmt::format("leaves the same terms of the inputs in all {} elements", elements)};
}

}  // namespace tw::fuzz
