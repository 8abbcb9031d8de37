#include "verify/prove_equivalent.h"

#include <fmt/format.h>

namespace tw::fuzz {

EquivalenceProver::EquivalenceProver(const codegen::ThreadKernel& original, const Bindings& sizes)
    : sizes_(sizes), original_(run_symbolically(terms_, original, sizes)) {
    if (std::holds_alternative<Undecided>(original_)) traced_ = trace_threads(terms_, original, sizes);
}

std::optional<std::string> EquivalenceProver::undecided() const {
    auto reason = std::get_if<Undecided>(&traced_);
    return reason ? std::optional(reason->text) : std::nullopt;
}

Comparison EquivalenceProver::compare(const codegen::ThreadKernel& mutant) {
    using Outcome = Comparison::Outcome;
    if (auto reason = undecided()) return {Outcome::Undecided, *reason};
    if (std::holds_alternative<Undecided>(original_)) return compare_traces(mutant);
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

Comparison EquivalenceProver::compare_waits(const codegen::ThreadKernel& mutant) {
    using Outcome = Comparison::Outcome;
    if (auto reason = undecided()) return {Outcome::Undecided, *reason};
    auto got = trace_threads(terms_, mutant, sizes_);
    if (auto reason = std::get_if<Undecided>(&got)) return {Outcome::Unknown, reason->text};
    if (auto finding = std::get_if<Misuse>(&got)) return {Outcome::Misuse, finding->text};
    if (!all_wait_for_previous(std::get<Traces>(got))) return {Outcome::Unknown, "a thread waits for nobody"};
    return {Outcome::Same, "who does not wait touches global memory only behind those who have"};
}

Comparison EquivalenceProver::compare_traces(const codegen::ThreadKernel& mutant) {
    using Outcome = Comparison::Outcome;
    auto got = trace_threads(terms_, mutant, sizes_);
    for (const auto* run : {&traced_, &got}) {
        if (auto reason = std::get_if<Undecided>(run)) return {Outcome::Unknown, reason->text};
        if (auto finding = std::get_if<Misuse>(run)) return {Outcome::Misuse, finding->text};
    }
    Sameness same = why_same(std::get<Traces>(traced_), std::get<Traces>(got));
    if (same.reason.empty()) return {Outcome::Unknown, "threads do something else"};
    return {same.unless_it_hangs ? Outcome::SameUnlessItHangs : Outcome::Same, same.reason};
}

}  // namespace tw::fuzz
