// Tries the kinds of illegal steps by turns.
#include "support/error.h"
#include "verify/fuzz.h"
#include "verify/illegal_kinds.h"

namespace tw::fuzz {
namespace {

std::vector<illegal::Kind> all_kinds() {
    std::vector<illegal::Kind> all;
    for (auto kinds : {illegal::kinds_of_declarations(), illegal::kinds_of_loops(), illegal::kinds_of_stages(),
                       illegal::kinds_of_reductions()})
        all.insert(all.end(), kinds.begin(), kinds.end());
    return all;
}

std::string wrong_with(const illegal::Attempt& t, const illegal::Kind& kind) {
    if (!t.refused) return t.message.empty() ? "the step was accepted" : t.message;
    if (t.message.find(kind.expected) == std::string::npos)
        return fmt::format("the message does not contain \"{}\": {}", kind.expected, t.message);
    bool names_line = false;
    for (unsigned line = t.first_line; line < t.first_line + 3; ++line)
        names_line |= t.message.rfind(fmt::format("{}:{}: ", t.file, line), 0) == 0;
    if (!names_line) return fmt::format("the message does not name line {} of {}: {}", t.first_line, t.file, t.message);
    return t.unchanged ? "" : "the refused step changed the schedule";
}

}  // namespace

IllegalSummary fuzz_illegal(int64_t count, uint64_t seed, const std::function<void(const Error&)>& seen) {
    IllegalSummary summary;
    const std::vector<illegal::Kind> kinds = all_kinds();
    for (const illegal::Kind& kind : kinds) summary.kinds.push_back({kind.name, kind.expected, 0});
    for (int64_t number = 0; number < count; ++number) {
        Random random(seed, static_cast<uint64_t>(number));
        size_t which = static_cast<size_t>(number) % kinds.size();
        const illegal::Kind& kind = kinds[which];
        illegal::Attempt attempt(random);
        std::string wrong;
        try {
            kind.make(attempt);
            wrong = wrong_with(attempt, kind);
        } catch (const std::exception& error) {
            wrong = fmt::format("the steps before ended in: {}", error.what());
        }
        ++summary.kinds[which].tried;
        if (!wrong.empty())
            summary.failures.push_back({number, fmt::format("{}: {}", kind.name, wrong)});
        else if (seen)
            seen(Error(attempt.site, attempt.message));
    }
    return summary;
}

}  // namespace tw::fuzz
