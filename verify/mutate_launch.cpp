#include "verify/mutate_launch.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "runtime/emulator/units/register_counts.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

class HeadMutator {
public:
    explicit HeadMutator(const ThreadKernel& kernel) : kernel_(kernel) {}

    std::vector<Mutant> run() {
        waits();
        attributes();
        registers();
        return std::move(found_);
    }

private:
    void add(const std::string& text, const std::vector<ThreadStmt>& body) {
        ThreadKernel mutant = kernel_;
        mutant.body = make_thread(ThreadBlock{body}, kernel_.body.step());
        found_.push_back({MutationKind::Launch, text, std::move(mutant), true});
    }

    void waits() {
        const std::vector<ThreadStmt> all = statements(programmatic_launch(kernel_).body);
        auto wait = std::find_if(all.begin(), all.end(), instruction_of<GriddepcontrolWait>);
        if (wait == all.end()) return;
        const auto at = wait - all.begin();
        std::vector<ThreadStmt> without = all, last, next = all;
        without.erase(without.begin() + at);
        last = without;
        last.push_back(*wait);
        next[size_t(at)] = make_thread(Instruction(GriddepcontrolLaunchDependents{}));
        add("griddepcontrol_wait: left out", without);
        add("griddepcontrol_wait: at the end", last);
        add("griddepcontrol_wait: griddepcontrol_launch_dependents", next);
        for (bool first_half : {true, false})
            if (auto some = wait_of_half(*wait, first_half); some.defined()) {
                std::vector<ThreadStmt> halved = all;
                halved[size_t(at)] = some;
                add(fmt::format("griddepcontrol_wait: only the {} half of the threads",
                                first_half ? "first" : "second"),
                    halved);
            }
        for (const ThreadStmt& stmt : all)
            if (auto role = stmt.as<ThreadRole>())
                add(fmt::format("griddepcontrol_wait: all but role '{}'", role->name),
                    wait_in_roles(without, *wait, stmt));
    }

    ThreadStmt wait_of_half(const ThreadStmt& wait, bool first_half) {
        const int half = (kernel_.threads + kernel_.producer_threads) / 2;
        if (half == 0 || !kernel_.thread.defined()) return {};
        const Expr middle = constant(kernel_.thread.type(), half);
        const Expr waits = first_half ? binary(BinaryOp::Less, kernel_.thread, middle)
                                      : binary(BinaryOp::LessEqual, middle, kernel_.thread);
        return make_thread(ThreadIf{waits, wait});
    }

    static std::vector<ThreadStmt> wait_in_roles(std::vector<ThreadStmt> body, const ThreadStmt& wait,
                                                 const ThreadStmt& but) {
        for (ThreadStmt& stmt : body) {
            auto role = stmt.as<ThreadRole>();
            if (!role || role == but.as<ThreadRole>()) continue;
            ThreadRole waiting = *role;
            waiting.body = make_thread(ThreadBlock{{wait, role->body}});
            stmt = make_thread(waiting, stmt.step());
        }
        return body;
    }

    void attribute(const std::string& from, const std::string& to) {
        found_.push_back({MutationKind::Launch, fmt::format("{}: {}", from, to), kernel_, false, from, to});
    }

    void attributes() {
        const int threads = kernel_.threads + kernel_.producer_threads;
        auto bounds = [](int count) { return fmt::format("__launch_bounds__({},", count); };
        if (threads > 1) attribute(bounds(threads), bounds(threads - 1));
        auto sides = [](int blocks) { return fmt::format("__cluster_dims__({},", blocks); };
        if (kernel_.cluster > 1) attribute(sides(kernel_.cluster), sides(kernel_.cluster / 2));
        if (!kernel_.maps.empty()) attribute("const __grid_constant__ tw::TensorMap", "const tw::TensorMap");
    }

    /// Roles that grow, or shrink to the larger number, get the smaller one. Only where that is too small for a
    /// product: else each role has as many registers as it needs either way, and nobody could tell.
    void registers() {
        std::set<int64_t> counts;
        int64_t needed = 0;
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            if (auto sets = instruction_of<SetMaxNReg>(stmt)) counts.insert(sets->count);
            needed = std::max(needed, registers_of_product(stmt));
        });
        if (counts.size() != 2 || needed == 0 || needed + emulator::LeastRegisters <= *counts.begin()) return;
        ThreadKernel mutant = kernel_;
        const int64_t few = *counts.begin(), many = *counts.rbegin();
        mutant.body = transform(kernel_.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
            auto sets = instruction_of<SetMaxNReg>(stmt);
            if (!sets) return stmt;
            const int64_t at_entry = emulator::registers_at_entry(unsigned(kernel_.threads + kernel_.producer_threads),
                                                                  unsigned(kernel_.occupancy));
            const int64_t count = few + many - sets->count;
            return make_thread(Instruction(SetMaxNReg{count, count > at_entry}), stmt.step());
        });
        found_.push_back({MutationKind::Launch, "numbers of registers of roles: exchanged", std::move(mutant)});
    }

    /// The accumulators of a thread.
    static int64_t registers_of_product(const ThreadStmt& stmt) {
        auto product = instruction_of<Wgmma>(stmt);
        return product ? product->atom->n / 2 : 0;
    }

    const ThreadKernel& kernel_;
    std::vector<Mutant> found_;
};

}  // namespace

std::vector<Mutant> altered_heads(const ThreadKernel& kernel) { return HeadMutator(kernel).run(); }

}  // namespace tw::fuzz
