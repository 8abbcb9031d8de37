// tw tune: the fastest tilings of products on tensor cores and of convolutions, and the fastest candidates of what is
// scheduled by rule, measured on this machine and kept as records.
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>

#include "runtime/compile/replace_file.h"
#include "runtime/driver/arch.h"
#include "support/error.h"
#include "support/progress.h"
#include "tools/commands.h"
#include "tools/numbers.h"
#include "tools/output.h"
#include "tools/tune_names.h"
#include "tuning/tunable_declaration.h"
#include "tuning/tune_declaration.h"

namespace tw {
namespace {

using schedules::TunedRecord;

struct TuneCommand {
    std::vector<std::string> names;
    std::string cases, device, records = "tuned.jsonl";
    tuning::TuneOptions options;
    bool verbose = false;
};

struct ChosenKernel {
    std::string name;
    tuning::Tunable tunable;
    std::vector<schedules::DeclarationKey> keys = {};  ///< of what is scheduled by rule, and of its bucket
};

/// A family's kernel by its tilings; what else the catalog or a user has, by the choices of its rule.
ChosenKernel kernel_to_tune(const std::string& name, const Target& target, const tuning::TuneOptions& options) {
    for (const auto& family : {tuning::tunable_product, tuning::tunable_convolution})
        if (auto found = family(name)) return {name, *found};
    const schedules::CatalogEntry* entry = schedules::find_kernel(name);
    if (!entry) return {name, tuning::find_tunable(name)};  // which says what names there are
    tuning::TunableDeclaration declared = tuning::tunable_kernel(*entry, target, options);
    return {name, std::move(declared.tunable), {declared.key, declared.bucket}};
}

std::vector<ChosenKernel> chosen_kernels(const std::vector<std::string>& names, const Target& target,
                                         const tuning::TuneOptions& options) {
    std::vector<ChosenKernel> kernels;
    for (const std::string& name : names) try {
            kernels.push_back(kernel_to_tune(name, target, options));
        } catch (const Error& problem) {
            throw CLI::ValidationError(fmt::format("tune: {}", problem.what()));
        }
    return kernels;
}

std::vector<std::string> names_of(const TuneCommand& command) {
    std::vector<std::string> names = command.names;
    if (!command.cases.empty())
        for (const std::string& name : kernels_of_cases(command.cases)) names.push_back(name);
    if (names.empty()) throw CLI::ValidationError("tune: name at least one kernel, or --cases FILE");
    return names;
}

std::vector<TunedRecord> read_records(const std::string& path) {
    if (!std::filesystem::exists(path)) return {};  // it is made now
    std::ifstream file(path, std::ios::binary);
    if (!file) throw_error(Error, "tune: cannot read the records in {}; choose a file with --records", path);
    return schedules::parse_records(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

void write_records(const std::string& path, const std::vector<TunedRecord>& records) {
    std::filesystem::path whole = std::filesystem::absolute(path);
    File folder(open(whole.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder) remove_abandoned_files(*folder);  // those of a run that was killed while it wrote
    std::string problem = folder ? replace_file(*folder, whole.filename(), schedules::records_text(records))
                                 : system_text("cannot open its folder");
    if (!problem.empty())
        throw_error(Error, "tune: cannot write the records to {} ({}); choose a file with --records", path, problem);
}

/// One bar for each phase.
class Bars {
public:
    void show(const std::string& kernel, const std::string& phase, int64_t done, int64_t all, const std::string& next) {
        if (phase != phase_) {
            phase_ = phase;
            bar_.emplace(fmt::format("{} {}", kernel, phase), all);
        }
        bar_->show(done, next);
    }

private:
    std::string phase_;
    std::optional<Progress> bar_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void report(const std::string& name, const tuning::TuneResult& result, double flops, bool verbose) {
    const TunedRecord& r = result.record;
    double gain = result.today_milliseconds > 0 ? result.today_milliseconds / r.milliseconds : 1;
    print("{:<36} {:>10.4f} ms {:>8.1f} TFLOP/s  {:<24} {:.3f} x of {} today, {} measured, {} skipped\n", name,
          r.milliseconds, r.milliseconds > 0 ? flops / r.milliseconds * 1e-9 : 0, r.tiling, gain, result.today,
          result.measured.size(), result.skipped.size());
    if (verbose)
        print("  {:.1f} s to compile, {:.1f} s to measure, {:.1f} s to check\n", result.compile_seconds,
              result.measure_seconds, result.check_seconds);
    for (const tuning::MeasuredTiling& measured : result.measured)
        if (verbose) print("  {:<24} {:.4f} ms\n", measured.tiling, measured.milliseconds);
    for (const tuning::SkippedTiling& skipped : result.skipped)
        if (verbose || skipped.reason.starts_with("WRONG"))
            complain(fmt::format("  skipped {}: {}", skipped.tiling, first_line(skipped.reason)));
}

/// False if no tiling of the kernel is usable.
bool tune_one(const ChosenKernel& kernel, const std::shared_ptr<Device>& device, const TuneCommand& command,
              std::vector<TunedRecord>& records) try {
    tuning::TuneOptions options = command.options;
    const bool is_by_rule = !kernel.keys.empty();
    if (is_by_rule) options.least_gain = TuneRequest().least_gain;
    auto result = [&] {
        Bars bars;
        return (is_by_rule ? tuning::tune_choices : tuning::tune)(
            kernel.tunable, device, options, [&](const auto& phase, int64_t done, int64_t all, const auto& next) {
                bars.show(kernel.name, phase, done, all, next);
            });
    }();
    device->release_pool();
    report(kernel.name, result, kernel.tunable.flops, command.verbose);
    put_record(records, result.record);
    for (const schedules::DeclarationKey& key : kernel.keys) {
        TunedRecord named = result.record;
        named.kernel = key.name;
        put_record(records, named);
    }
    write_records(command.records, records);
    if (is_by_rule && device->kind() == DeviceKind::Cuda) {
        for (const schedules::DeclarationKey& key : kernel.keys) keep_record(key, result.record);
        print("  kept: choose_schedule takes it from now on\n");
    }
    return true;
} catch (const StickyError&) {
    throw;  // the device is lost; what was tuned before is written
} catch (const OutputLost&) {
    throw;
} catch (const Error& problem) {
    complain(fmt::format("tw: {}", problem.what()));
    return false;
}

int tune(const TuneCommand& command) {
    const std::vector<std::string> names = names_of(command);
    ChosenDevice chosen =
        command.device.empty() ? best_device() : ChosenDevice{open_device(command.device), command.device};
    const std::vector<ChosenKernel> kernels = chosen_kernels(names, target_of(*chosen.device), command.options);
    std::vector<TunedRecord> records = read_records(command.records);
    write_records(command.records, records);  // what cannot be written is better known now
    print("tuning on {}\n", chosen.reason);
    if (chosen.device->kind() != DeviceKind::Cuda)
        print("its times say nothing about a GPU: no kernel takes a record of them\n");
    int status = StatusDone;
    for (const ChosenKernel& kernel : kernels)
        if (!tune_one(kernel, chosen.device, command, records)) status = StatusFailed;
    return status;
}

}  // namespace

void add_tune_command(CLI::App& app, int& status) {
    auto o = std::make_shared<TuneCommand>();
    auto* command = app.add_subcommand(
        "tune",
        "measure tilings of products on tensor cores and of convolutions, and other schedules of what is scheduled by "
        "rule, and keep the fastest that is right; see docs/tuning.md");
    command->add_option("kernels", o->names,
                        "names of kernels without a tiling: gemm_bf16_4096x4096x4096_tb; of what choose_schedule "
                        "schedules: softmax_16384x8192_bf16_automatic; and of --load");
    add_load_option(command);
    command->add_option("--cases", o->cases, "JSON lines of kernels, as bench/cases/gemm.jsonl and conv.jsonl");
    command->add_option("--records", o->records, "the file that the winners' records go to, one for each kernel")
        ->capture_default_str();
    command->add_option("--device", o->device, "cuda, cuda:1 or emulated; the best there is if not given");
    command->add_option("--limit", o->options.limit, "tilings, or candidates, tried of each kernel")
        ->check(whole_number(1, 1000000000))
        ->capture_default_str();
    command->add_flag(
        "--spread", o->options.spread,
        "tilings from the whole space of a product, fast and slow ones, for comparing the model with what "
        "is measured (--verbose has each tiling's time)");
    command
        ->add_option("--generated", o->options.generated,
                     "schedules beyond the choices of a rule that a search looks at; the best of them are measured, "
                     "too; 0: none")
        ->check(whole_number(0, 1000000))
        ->capture_default_str();
    command->add_option("--seconds", o->options.seconds, "that the best tilings of a kernel are measured, at most")
        ->check(positive_real())
        ->capture_default_str();
    command
        ->add_option("--within", o->options.within,
                     "seconds to compile and measure each kernel in: tilings that the model puts last are left out")
        ->check(positive_real());
    command->add_option("--threads", o->options.threads, "that compile; 0: one for each processor")
        ->check(whole_number(0, 4096))
        ->capture_default_str();
    command->add_flag("--verbose", o->verbose,
                      "also what took how long, the time of each tiling, and why each skipped one was");
    command->callback([o, &status] { status = tune(*o); });
}

}  // namespace tw
