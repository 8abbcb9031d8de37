#include "bench/kernel_case.h"

#include <algorithm>
#include <fstream>

#include <fmt/ranges.h>

#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/copy_bandwidth.h"
#include "runtime/driver/timer.h"
#include "support/error.h"

namespace tw::bench {
namespace {

constexpr int64_t MostSets = 256;

Schedule schedule_of(const schedules::CatalogEntry& entry, const Device& device) {
    return entry.make(target_of(device));
}

nlohmann::json describe(const BufferNode& buffer, const Bindings& numbers, const std::string& file) {
    std::vector<int64_t> shape = extents_of(buffer.shape, numbers), strides = extents_of(buffer.strides, numbers);
    return {{"name", buffer.name},
            {"type", name_of(buffer.type)},
            {"shape", shape},
            {"strides", strides.empty() ? dense_strides(shape) : strides},
            {"file", file}};
}

std::string write_file(const std::string& folder, const std::string& name, const std::vector<std::byte>& bytes) {
    if (folder.empty()) return "";
    std::string path = folder + "/" + name;
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw_error(Error, "prepare: cannot write {}; give a folder with room in \"folder\"", path);
    return path;
}

double total_bytes(const Tree& tree, const Bindings& numbers) {
    double total = 0;
    for (const auto* buffers : {&tree.inputs, &tree.outputs})
        for (const BufferRef& buffer : *buffers) {
            double elements = 1;
            for (int64_t extent : extents_of(buffer->shape, numbers)) elements *= static_cast<double>(extent);
            total += elements * bytes_of(buffer->type);
        }
    return total;
}

}  // namespace

CaseRequest case_request(const nlohmann::json& command) try {
    CaseRequest request{.kernel = command.at("kernel"), .seed = command.value("seed", uint64_t{1})};
    request.scalars = command.value("scalars", request.scalars);
    request.sizes = command.value("sizes", request.sizes);
    request.normal = command.value("normal", false);
    request.folder = command.value("folder", std::string());
    std::map<std::string, std::pair<double, double>> none;
    for (const auto& [name, range] : command.value("ranges", none)) request.ranges[name] = {range.first, range.second};
    for (const auto& [name, range] : command.value("ascending", none))
        request.ascending[name] = {range.first, range.second};
    return request;
} catch (const nlohmann::json::exception& problem) {
    throw_error(Error,
                "prepare: {}; it takes \"kernel\" (a name), \"seed\", \"scalars\" and \"sizes\" (name: number), "
                "\"ranges\" and \"ascending\" (name: [low, high]), \"normal\" (true: data of mean 0 and deviation 1) "
                "and \"folder\"",
                problem.what());
}

KernelCase::KernelCase(const schedules::CatalogEntry& entry, std::shared_ptr<Device> device, const CaseRequest& request)
    : KernelCase(schedule_of(entry, *device), entry.flops, device, request) {}

KernelCase::KernelCase(const Schedule& schedule, double flops, std::shared_ptr<Device> device,
                       const CaseRequest& request)
    : device_(device), executable_(build(schedule), device) {
    const Tree& tree = executable_.program().tree();
    check_names(request);
    choose_numbers(request);
    facts_["inputs"] = facts_["outputs"] = nlohmann::json::array();
    Arguments first = first_set(schedule.outputs(), request);
    add_set(first);
    for (const Launch& launch : sets_[0]) launch.run();
    device_->synchronize();
    for (const BufferRef& output : tree.outputs) note_output(output, first, request.folder);

    const double bytes = total_bytes(tree, numbers_);
    int64_t sets = device_->kind() == DeviceKind::Cuda ? 1 + RotatedBytes / std::max<int64_t>(int64_t(bytes), 1) : 2;
    for (int64_t set = 1; set < std::min(sets, MostSets); ++set) add_set(another_set(first));
    facts_.update({{"bytes", bytes},
                   {"flops", flops},
                   {"sets", sets_.size()},
                   {"launches", sets_[0].size()},
                   {"approximate", executable_.program().approximate()},
                   {"scalars", nlohmann::json::object()}});
    for (const auto& [name, value] : numbers_.scalars)
        facts_["scalars"][name] = is_float(value.type) ? value.real : static_cast<double>(value.integer);
}

void KernelCase::check_names(const CaseRequest& request) const {
    const Tree& tree = executable_.program().tree();
    auto check = [&](const char* key, const auto& wishes, const std::vector<std::string>& known) {
        for (const auto& wish : wishes)
            if (std::find(known.begin(), known.end(), wish.first) == known.end())
                throw_error(Error, "prepare: \"{}\" names '{}', which {} does not have; there is [{}]", key, wish.first,
                            request.kernel, fmt::join(known, ", "));
    };
    auto names_of = [](const std::vector<Expr>& variables) {
        std::vector<std::string> names;
        for (const Expr& variable : variables) names.push_back(variable.as<Variable>()->name);
        return names;
    };
    std::vector<std::string> inputs;
    for (const BufferRef& input : tree.inputs) inputs.push_back(input->name);
    check("ranges", request.ranges, inputs);
    check("ascending", request.ascending, inputs);
    check("scalars", request.scalars, names_of(tree.scalars));
    check("sizes", request.sizes, names_of(tree.sizes));
}

void KernelCase::choose_numbers(const CaseRequest& request) {
    const Tree& tree = executable_.program().tree();
    for (const Expr& size : tree.sizes) {
        const Variable& variable = *size.as<Variable>();
        numbers_.sizes[variable.name] = variable.max.value_or(1);
    }
    for (const auto& [name, value] : request.sizes) numbers_.sizes[name] = value;
    for (const Expr& scalar : tree.scalars) {
        const std::string& name = scalar.as<Variable>()->name;
        auto wish = request.scalars.find(name);
        double value = wish == request.scalars.end() ? 0.75 : wish->second;
        numbers_.scalars[name] = is_float(scalar.type()) ? make_value(scalar.type(), value)
                                                         : make_value(scalar.type(), static_cast<int64_t>(value));
    }
}

Arguments KernelCase::first_set(const std::vector<Tensor>& outputs, const CaseRequest& request) {
    const Tree& tree = executable_.program().tree();
    auto integers = integer_ranges(outputs, numbers_);
    Arguments arguments{.buffers = {}, .sizes = numbers_.sizes, .scalars = numbers_.scalars};
    for (const BufferRef& input : tree.inputs) {
        HostArray array =
            host_array(input->type, extents_of(input->shape, numbers_), extents_of(input->strides, numbers_));
        auto range = request.ranges.find(input->name);
        uint64_t seed = request.seed * 1009 + arguments.buffers.size();
        if (auto order = request.ascending.find(input->name); order != request.ascending.end())
            fill_ascending(array, order->second, seed);
        else if (request.normal && range == request.ranges.end())
            fill_normal(array, seed);
        else
            fill_random(array, range == request.ranges.end() ? Range{} : range->second, integers[input->name], seed);
        Buffer buffer = device_->allocate(static_cast<int64_t>(array.bytes.size()), input->name);
        buffer.copy_from_host(array.bytes.data());
        arguments.buffers[input->name] = buffer;
        facts_["inputs"].push_back(
            describe(*input, numbers_, write_file(request.folder, "input_" + input->name, array.bytes)));
    }
    for (const BufferRef& output : tree.outputs) {
        if (name_of_memory(tree, output) != output->name) continue;
        Buffer buffer = device_->allocate(bytes_spanned(*output, numbers_), output->name);
        if (device_->kind() == DeviceKind::Cuda) buffer.fill(0xff);
        arguments.buffers[output->name] = buffer;
    }
    return arguments;
}

Arguments KernelCase::another_set(const Arguments& first) {
    Arguments copies = first;
    for (auto& [name, buffer] : copies.buffers) {
        Buffer copy = device_->allocate(buffer.bytes(), name);
        device_->copy(copy, buffer);
        buffer = copy;
    }
    return copies;
}

void KernelCase::add_set(const Arguments& arguments) {
    executable_.bind(arguments);
    sets_.push_back(executable_.launches());
}

void KernelCase::note_output(const BufferRef& output, const Arguments& arguments, const std::string& folder) {
    std::string file;
    if (!folder.empty()) {
        const Buffer& buffer = arguments.buffers.at(name_of_memory(executable_.program().tree(), output));
        std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
        buffer.copy_to_host(bytes.data());
        file = write_file(folder, "output_" + output->name, bytes);
    }
    facts_["outputs"].push_back(describe(*output, numbers_, file));
}

Graph KernelCase::recorded(int64_t runs) const {
    std::vector<Launch> launches;
    for (int64_t run = 0; run < runs; ++run) {
        const auto& set = sets_[static_cast<size_t>(run) % sets_.size()];
        launches.insert(launches.end(), set.begin(), set.end());
    }
    return device_->record(launches);
}

double KernelCase::burst(int64_t runs) {
    if (runs < 1) throw_error(Error, "burst: \"n\" is {}; give at least 1", runs);
    if (sets_[0].empty()) return 0;
    const bool is_new = runs != graph_runs_;
    if (is_new) graph_ = recorded(runs);
    graph_runs_ = runs;
    auto replay = [&](const Stream& stream) { graph_.run(stream); };
    return time_on(*device_, replay, {.warmups = is_new ? 1 : 0, .samples = 1}).median_seconds /
           static_cast<double>(runs);
}

}  // namespace tw::bench
