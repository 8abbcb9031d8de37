// tw doctor: what this machine has.
#include "runtime/driver/doctor.h"

#include <memory>

#include <fmt/format.h>

#include "tools/commands.h"
#include "tools/output.h"

namespace tw {

void add_machine_commands(CLI::App& app, int& status) {
    auto json = std::make_shared<bool>(false);
    auto* doctor = app.add_subcommand(
        "doctor", "what this machine has of what is used, where was looked, what is missing; 1 if no kernel can run");
    doctor->add_flag("--json", *json, "as JSON");
    doctor->callback([json, &status] {
        DoctorReport report = examine();
        print("{}\n", *json ? to_json(report) : to_text(report));
        if (!report.can_run_cuda() && !report.can_emulate()) status = StatusFailed;
    });
}

}  // namespace tw
