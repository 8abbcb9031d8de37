// tw_bench: measures on behalf of compare.py. Commands come as JSON objects on standard input, one a line; each is
// answered by one line of JSON, {"error": ...} if it could not be done.
//
//   {"cmd": "hello"}                                  the device, and the names of the catalog
//   {"cmd": "prepare", "kernel": ..., "folder": ...}  see CaseRequest; answers KernelCase::facts()
//   {"cmd": "prepare", "step": "mlp", "sizes": {}, "values": "bf16", "branches": true, "folder": ..., "text": false,
//    "profile": false}                              see StepCase
//   {"cmd": "burst", "n": 20}                         {"ms": ...} of one of 20 runs of what is prepared
//   {"cmd": "finish"}                                 frees what is prepared
//   {"cmd": "ahead", "kernels": [...], "threads": 0}  compiles them on all processors, for later commands: "refused"
//   and
//                                                     why; "most_seconds" for each; with "arch" for another device,
//                                                     with "lower" to text alone
//   {"cmd": "compile", "kernel": ..., "arch": ...}    see measures.h, as for the next three
//   {"cmd": "launch", "graph": 100}
//   {"cmd": "calls"}
//   {"cmd": "emulator", "m": 256, "n": 256, "k": 512}
#include <cstdlib>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "bench/kernel_case.h"
#include "bench/measures.h"
#include "bench/step_case.h"
#include "runtime/driver/arch.h"
#include "schedules/load_kernels.h"
#include "support/error.h"

namespace tw::bench {
namespace {

using Json = nlohmann::json;

class UnknownKernel : public Error {
public:
    using Error::Error;
};

const schedules::CatalogEntry& entry_named(const std::string& name) {
    const auto* entry = schedules::find_kernel(name);
    if (!entry) throw_error(UnknownKernel, "no kernel named '{}'; `tw list` shows all", name);
    return *entry;
}

class Session {
public:
    explicit Session(std::shared_ptr<Device> device) : device_(std::move(device)) {}

    Json answer(const Json& command) {
        const std::string what = command.at("cmd");
        if (what == "hello") return hello();
        if (what == "prepare") return prepare(command);
        if (what == "burst") return burst(command);
        if (what == "finish") return finish();
        if (what == "compile")
            return measure_compile(entry_named(command.at("kernel")), command.value("arch", "sm_90a"));
        if (what == "ahead") return ahead(command);
        if (what == "launch") return measure_launch(device_, command.value("graph", 100));
        if (what == "calls") return measure_calls(device_);
        if (what == "emulator") return measure_emulator(command.at("m"), command.at("n"), command.at("k"));
        throw_error(Error,
                    "no command '{}'; write hello, prepare, burst, finish, ahead, compile, launch, calls or emulator",
                    what);
    }

private:
    Json hello() const {
        Json names = Json::array();
        for (const auto& entry : schedules::catalog()) names.push_back(entry.name);
        return {{"device", device_->name()}, {"arch", device_->arch()}, {"kernels", names}};
    }
    Json prepare(const Json& command) {
        if (command.contains("step")) return prepare_step(command);
        CaseRequest request = case_request(command);
        finish();
        std::vector entries{&entry_named(request.kernel)};
        if (!request.then.empty()) entries.push_back(&entry_named(request.then));
        prepared_.emplace(entries, device_, request);
        return prepared_->facts();
    }
    Json prepare_step(const Json& command) {
        const std::string values = command.value("values", "f32");
        if (values != "f32" && values != "bf16")
            throw_error(Error, "prepare: \"values\" are '{}'; write f32 or bf16", values);
        const TrainStepRequest request{.step = command.at("step"),
                                       .sizes = command.value("sizes", std::map<std::string, int64_t>{}),
                                       .seed = command.value("seed", uint64_t{1}),
                                       .values = values == "bf16" ? bf16 : f32,
                                       .branches = command.value("branches", true)};
        finish();
        step_.emplace(request, device_, command.value("folder", std::string()));
        Json facts = step_->facts();
        if (command.value("text", false)) facts["text"] = step_->text();
        if (command.value("profile", false)) facts["profile"] = step_->profile();
        return facts;
    }
    Json burst(const Json& command) {
        if (step_) return {{"ms", step_->burst(command.value("n", int64_t{1})) * 1e3}};
        if (!prepared_) throw_error(Error, "burst: nothing is prepared; send prepare first");
        return {{"ms", prepared_->burst(command.value("n", int64_t{1})) * 1e3}};
    }
    /// A name that the catalog does not know is refused as well.
    Json ahead(const Json& command) const {
        std::vector<const schedules::CatalogEntry*> entries;
        Json unknown = Json::object();
        for (const std::string& name : command.at("kernels").get<std::vector<std::string>>())
            if (const auto* entry = schedules::find_kernel(name))
                entries.push_back(entry);
            else
                unknown[name] = "no such name in the catalog";
        const Target there =
            command.contains("arch") ? target(command.at("arch").get<std::string>()) : target_of(*device_);
        Json answer = compile_ahead(entries, there,
                                    {.compile = !command.value("lower", false),
                                     .most_seconds = command.value("most_seconds", 0.0),
                                     .threads = command.value("threads", 0)});
        answer["refused"].update(unknown);
        return answer;
    }
    Json finish() {
        prepared_.reset();
        step_.reset();
        device_->release_pool();
        return Json::object();
    }

    std::shared_ptr<Device> device_;
    std::optional<KernelCase> prepared_;
    std::optional<StepCase> step_;
};

Json answer(Session& session, const std::string& line) try {
    return session.answer(Json::parse(line));
} catch (const UnknownKernel& problem) {
    return {{"error", problem.what()}, {"unavailable", true}};
} catch (const std::exception& problem) {
    return {{"error", problem.what()}};
}

int serve(const std::string& device, const std::vector<std::string>& libraries) try {
    for (const std::string& library : libraries) load_kernels(library);
    Session session(open_device(device));
    for (std::string line; std::getline(std::cin, line);)
        if (!line.empty()) std::cout << answer(session, line).dump() << std::endl;
    return 0;
} catch (const Error& problem) {
    std::cout << Json{{"error", problem.what()}}.dump() << std::endl;
    return 1;
}

}  // namespace
}  // namespace tw::bench

int main(int argc, char** argv) {
    CLI::App app("tw_bench: measures for bench/compare.py; JSON lines in, JSON lines out.");
    std::string device = "cuda";
    app.add_option("--device", device, "cuda, cuda:1 or emulated")->capture_default_str();
    std::vector<std::string> libraries;
    app.add_option("--load", libraries, "a shared object with kernels: see schedules/register_kernel.h");
    CLI11_PARSE(app, argc, argv);
    const int status = tw::bench::serve(device, libraries);
    if (tw::bench::compiles_still()) std::_Exit(status);
    return status;
}
