// A schedule's tree against the declaration after every step. Interpreted in float64 the declaration gives the exact
// values; in its own types, and as the tree before the first step, which has fused multiply-adds, the errors that its
// roundings make.
#include <algorithm>
#include <cmath>

#include "dsl/interpret.h"
#include "dsl/replay_steps.h"
#include "support/error.h"

namespace tw {
namespace {

/// What an output's elements may differ by.
struct Correct {
    HostArray exact, declared, start;
    double largest = 0, allowed = 0;  ///< magnitude of the exact elements; difference from them
};

double as_double(const Value& value) { return is_float(value.type) ? value.real : static_cast<double>(value.integer); }

template <class See>
void visit_elements(const HostArray& array, const See& see) {
    if (array.num_elements() == 0) return;
    std::vector<int64_t> at(array.shape.size(), 0);
    do see(at);
    while (advance(at, array.shape));
}

/// Another order of a sum may have four times the error of the declared one, which is exact by luck where a result has
/// few roundings: then it has some of them, of the type or, inside, of f32.
double allowance(Type type, double declared_error, double largest) {
    if (!is_float(type)) return 0;
    double roundings = type == Type::F64 ? 1e-13 : std::max(2 * unit_roundoff(type), 64 * unit_roundoff(Type::F32));
    return std::max(4 * declared_error, roundings * largest);
}

/// `start`: of the tree before the first step.
std::vector<Correct> references(const std::vector<Tensor>& outputs, const Bindings& inputs,
                                  const std::vector<HostArray>& start) {
    std::vector<HostArray> exact = interpret_plain(outputs, inputs, Precision::Float64);
    const std::vector<HostArray> declared = interpret_plain(outputs, inputs);
    std::vector<Correct> found;
    for (size_t k = 0; k < outputs.size(); ++k) {
        double error = 0, largest = 0;
        visit_elements(exact[k], [&](const std::vector<int64_t>& at) {
            double value = as_double(exact[k].at(at));
            if (!std::isfinite(value)) return;
            for (const HostArray* rounded : {&declared[k], &start[k]})
                if (double apart = std::abs(as_double(rounded->at(at)) - value); std::isfinite(apart))
                    error = std::max(error, apart);
            largest = std::max(largest, std::abs(value));
        });
        double allowed = allowance(outputs[k].type(), error, largest);
        found.push_back({std::move(exact[k]), declared[k], start[k], largest, allowed});
    }
    return found;
}

/// Whether the element is what the declaration gives, or near enough.
bool is_right(const Value& value, const Correct& reference, const std::vector<int64_t>& at, double allowed) {
    for (const HostArray* same : {&reference.declared, &reference.start, &reference.exact})
        if (as_double(same->at(at)) == as_double(value) || matches(value, same->at(at), equal_values)) return true;
    return std::abs(as_double(value) - as_double(reference.exact.at(at))) <= allowed;
}

/// "c[3, 5] is 1.5, declared 2", of the first element that differs by more than `roundings` and what is allowed.
std::string first_difference(const std::string& name, const HostArray& got, const Correct& reference,
                             double roundings) {
    std::string first;
    const double allowed = reference.allowed + roundings * reference.largest;
    visit_elements(got, [&](const std::vector<int64_t>& at) {
        if (!first.empty()) return;
        const Value value = got.at(at), declared = reference.declared.at(at);
        if (!is_right(value, reference, at, allowed))
            first =
                fmt::format("{}{} is {}, declared {}", name, indices_text(at), to_string(value), to_string(declared));
    });
    return first;
}

/// What is wrong with the schedule as it is; empty if nothing is.
std::string wrong_in(const Schedule& schedule, const std::vector<Correct>& expected, const Bindings& inputs) {
    double roundings = 0;
    for (Type type : schedule.roundings()) roundings += unit_roundoff(type);
    try {
        std::vector<HostArray> got = TreeInterpreter(schedule.tree()).run(inputs);
        for (size_t k = 0; k < got.size(); ++k) {
            std::string wrong = first_difference(schedule.outputs()[k].name(), got[k], expected[k], roundings);
            if (!wrong.empty()) return wrong;
        }
        return {};
    } catch (const Error& error) {
        return error.what();
    }
}

}  // namespace

void Schedule::check_each_step(const Bindings& inputs, std::source_location where) const {
    const Schedule start(outputs(), target(), where);
    const std::vector<Correct> expected = references(outputs(), inputs, interpret_tree(start.tree(), inputs));
    auto check = [&](const Schedule& so_far) {
        const size_t steps = so_far.trace().size();
        std::string wrong = steps == 0 ? "" : wrong_in(so_far, expected, inputs);
        if (wrong.empty()) return;
        const Step& step = trace()[steps - 1];
        user_error(where,
                   "check_each_step: after step [{}] {} ({}): {}. Steps change the order in which a reduction combines "
                   "its terms: is its reducer associative, its identity one, and is it commutative if declared so?",
                   steps - 1, step.text, step.file_line, wrong);
    };
    replay_steps(*this, check, where);
}

}  // namespace tw
