// What the emulator counts of a schedule that it runs: tutorials compare their steps by it.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/program.h"
#include "runtime/driver/emulated_device.h"
#include "tutorials/lesson.h"

namespace tw {

/// Runs schedules on the emulator, checks all outputs against the declaration in float64, and prints what was moved.
class Counter {
public:
    explicit Counter(Lesson& lesson) : lesson_(lesson) {
        emulator::Options options;
        options.statistics = true;
        device_->set_options(options);
    }

    emulator::Statistics operator()(const std::string& name, const Schedule& s) const {
        return (*this)(name, s, random_bindings(s.outputs(), 1));
    }
    emulator::Statistics operator()(const std::string& name, const Schedule& s, const Bindings& bindings) const {
        const Program program = build(s);
        Executable executable(program, device_);
        device_->reset_statistics();
        const std::vector<HostArray> got = run_on(executable, bindings);
        const auto counts = device_->statistics();
        fmt::print("    {:<22} {:>7} {:>9} {:>12} {:>12} {:>12} {:>12}\n", name, program.kernels().size(),
                   counts.global_requests, counts.global_bytes, counts.box_bytes, counts.shared_wavefronts,
                   counts.shared_bank_conflicts);
        for (size_t k = 0; k < got.size(); ++k) {
            const CheckResult check =
                check_output(s.outputs()[k], bindings, got[k],
                             {.approximate = program.approximate(), .roundings = s.roundings(), .samples = 512});
            if (!check.ok) lesson_.expect(false, name + ": " + check.text);
        }
        return counts;
    }

    void heading() const {
        fmt::print("    {:<22} {:>7} {:>9} {:>12} {:>12} {:>12} {:>12}\n", "", "kernels", "requests", "bytes",
                   "by boxes", "shared passes", "conflicts");
    }

private:
    Lesson& lesson_;
    std::shared_ptr<EmulatedDevice> device_ = std::make_shared<EmulatedDevice>("sm_90a");
};

}  // namespace tw
