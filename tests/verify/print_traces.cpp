// Prints a test for each schedule: its trace as C++, between the variables that it speaks of and the comparison of what
// it makes with the schedule itself.
#include <fmt/format.h>

#include "dsl/handle_names.h"
#include "tests/verify/traced_schedules.h"

using namespace tw;

namespace {

/// Variables for all tensors, outputs of a tuple in a vector, and sizes.
void declare(const Schedule& schedule) {
    const auto operations = operations_of(schedule.outputs());
    const auto& sizes = schedule.tree().sizes;
    const HandleNames names(operations, sizes);
    for (size_t o = 0; o < operations.size(); ++o) {
        std::string name = names.tensor(operations[o].get(), 0), list;
        const size_t outputs = operations[o]->outputs.size();
        for (size_t k = 0; k < outputs; ++k) list += fmt::format("{}Tensor(operations[{}], {})", k ? ", " : "", o, k);
        if (outputs > 1)
            fmt::print("    std::vector<Tensor> {} = {{{}}};\n", name.substr(0, name.find('[')), list);
        else
            fmt::print("    Tensor {} = {};\n", name, list);
    }
    for (size_t k = 0; k < sizes.size(); ++k)
        fmt::print("    Expr {} = made.tree().sizes[{}];\n", names.size(to_string(sizes[k])), k);
}

}  // namespace

int main() {
    fmt::print("#include <gtest/gtest.h>\n\n#include \"tests/verify/traced_schedules.h\"\n\nusing namespace tw;\n");
    const auto& all = fuzz::traced_schedules();
    for (size_t k = 0; k < all.size(); ++k) {
        fmt::print("\nTEST(CompiledTraces, {}) {{\n", all[k].name);
        fmt::print("    const Schedule& made = fuzz::traced_schedules()[{}].schedule;\n", k);
        fmt::print("    const auto operations = operations_of(made.outputs());\n");
        declare(all[k].schedule);
        fmt::print("    Schedule s(made.outputs(), made.target());\n{}", fuzz::steps_of(all[k].schedule));
        fmt::print("    EXPECT_EQ(s.to_string(), made.to_string());\n");
        fmt::print("    EXPECT_EQ(fuzz::steps_of(s), fuzz::steps_of(made));\n}}\n");
    }
    return 0;
}
