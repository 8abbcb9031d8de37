#include "bench/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

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

nlohmann::json describe(const BufferNode& buffer, const std::vector<int64_t>& shape, const Bindings& numbers,
                        const std::string& file) {
    std::vector<int64_t> strides = extents_of(buffer.strides, numbers);
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

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

IntegerRange whole_numbers_in(const Range& range) {
    const auto low = static_cast<int64_t>(std::ceil(range.low));
    return {.low = low, .high = std::max(low, static_cast<int64_t>(std::floor(range.high)))};
}

}  // namespace

CaseRequest case_request(const nlohmann::json& command) try {
    CaseRequest request{.kernel = command.at("kernel"), .seed = command.value("seed", uint64_t{1})};
    request.then = command.value("then", request.then);
    request.parts = command.value("parts", request.parts);
    request.rows = command.value("of_rows", request.rows);
    request.scalars = command.value("scalars", request.scalars);
    request.sizes = command.value("sizes", request.sizes);
    request.normal = command.value("normal", false);
    request.folder = command.value("folder", std::string());
    std::map<std::string, std::pair<double, double>> none;
    for (const auto& [name, range] : command.value("ranges", none)) request.ranges[name] = {range.first, range.second};
    for (const auto& [name, range] : command.value("ascending", none))
        request.ascending[name] = {range.first, range.second};
    std::map<std::string, std::tuple<int64_t, int64_t, double>> no_outliers;
    for (const auto& [name, outliers] : command.value("outliers", no_outliers))
        request.outliers[name] = std::make_from_tuple<Outliers>(outliers);
    return request;
} catch (const nlohmann::json::exception& problem) {
    throw_error(Error,
                "prepare: {}; it takes \"kernel\" (a name), \"seed\", \"scalars\" and \"sizes\" (name: number), "
                "\"ranges\" and \"ascending\" (name: [low, high]), \"normal\" (true: data of mean 0 and deviation 1), "
                "\"outliers\" (name: [dimension, every, factor]), "
                "\"then\" (a name), \"parts\" (a number) and \"of_rows\" (names), and \"folder\"",
                problem.what());
}

KernelCase::KernelCase(const schedules::CatalogEntry& entry, std::shared_ptr<Device> device, const CaseRequest& request)
    : KernelCase(std::vector{&entry}, std::move(device), request) {}

KernelCase::KernelCase(const std::vector<const schedules::CatalogEntry*>& entries, std::shared_ptr<Device> device,
                       const CaseRequest& request)
    : device_(std::move(device)), parts_(request.parts), rows_(request.rows) {
    if (parts_ < 1) throw_error(Error, "prepare: \"parts\" is {}; give at least 1", parts_);
    std::vector<Tensor> outputs;
    for (const schedules::CatalogEntry* entry : entries) {
        const Schedule schedule = schedule_of(*entry, *device_);
        outputs.insert(outputs.end(), schedule.outputs().begin(), schedule.outputs().end());
        kernels_.emplace_back(build(schedule), device_);
    }
    check_names(request);
    choose_numbers(request);
    facts_["inputs"] = facts_["outputs"] = nlohmann::json::array();
    const Arguments first = first_set(outputs, request);
    add_set(first);
    for (const Launch& launch : sets_[0]) launch.run();
    device_->synchronize();
    note_outputs(first, request.folder);
    note_costs(entries, first);
    const auto bytes = int64_t(facts_["bytes"].get<double>());
    int64_t sets = device_->kind() == DeviceKind::Cuda ? 1 + RotatedBytes / std::max<int64_t>(bytes, 1) : 2;
    for (int64_t set = 1; set < std::min(sets, MostSets); ++set) add_set(another_set(first));
    facts_["sets"] = sets_.size();
}

std::vector<const Tree*> KernelCase::trees() const {
    std::vector<const Tree*> all;
    for (const Executable& kernel : kernels_) all.push_back(&kernel.program().tree());
    return all;
}

void KernelCase::note_costs(const std::vector<const schedules::CatalogEntry*>& entries, const Arguments& first) {
    std::map<std::string, double> bytes;
    double memory = 0, flops = 0;
    for (const Tree* tree : trees()) {
        for (const auto* buffers : {&tree->inputs, &tree->outputs})
            for (const BufferRef& buffer : *buffers) {
                double& own = bytes[buffer->name] = static_cast<double>(bytes_of(buffer->type));
                for (int64_t extent : shape_of(*buffer)) own *= static_cast<double>(extent);
            }
        for (const BufferRef& workspace : tree->workspaces)
            memory += static_cast<double>(bytes_spanned(*workspace, numbers_) * parts_);
    }
    for (const auto& [name, buffer] : first.buffers) memory += static_cast<double>(buffer.bytes());
    for (const schedules::CatalogEntry* entry : entries) flops += entry->flops * static_cast<double>(parts_);
    const double moved = std::accumulate(bytes.begin(), bytes.end(), 0.0,
                                         [](double sum, const auto& named) { return sum + named.second; });
    const bool approximate =
        std::ranges::any_of(kernels_, [](const Executable& kernel) { return kernel.program().approximate(); });
    facts_.update({{"bytes", moved},
                   {"memory", memory},
                   {"flops", flops},
                   {"launches", sets_[0].size()},
                   {"approximate", approximate},
                   {"scalars", nlohmann::json::object()}});
    for (const auto& [name, value] : numbers_.scalars)
        facts_["scalars"][name] = is_float(value.type) ? value.real : static_cast<double>(value.integer);
}

void KernelCase::check_names(const CaseRequest& request) const {
    auto check = [&](const char* key, const auto& wishes, const std::vector<std::string>& known) {
        for (const auto& wish : wishes)
            if (!contains(known, wish.first))
                throw_error(Error, "prepare: \"{}\" names '{}', which {} does not have; there is [{}]", key, wish.first,
                            request.kernel, fmt::join(known, ", "));
    };
    std::vector<std::string> inputs, scalars, sizes;
    auto add = [](std::vector<std::string>& names, const std::string& name) {
        if (!contains(names, name)) names.push_back(name);
    };
    for (const Tree* tree : trees()) {
        for (const BufferRef& input : tree->inputs)
            if (!is_handed_on(input->name)) add(inputs, input->name);
        for (const Expr& scalar : tree->scalars) add(scalars, scalar.as<Variable>()->name);
        for (const Expr& size : tree->sizes) add(sizes, size.as<Variable>()->name);
    }
    check("ranges", request.ranges, inputs);
    check("ascending", request.ascending, inputs);
    check("outliers", request.outliers, inputs);
    check("scalars", request.scalars, scalars);
    check("sizes", request.sizes, sizes);
}

void KernelCase::choose_numbers(const CaseRequest& request) {
    for (const Tree* tree : trees())
        for (const Expr& size : tree->sizes) {
            const Variable& variable = *size.as<Variable>();
            numbers_.sizes[variable.name] = variable.max.value_or(1);
        }
    for (const auto& [name, value] : request.sizes) numbers_.sizes[name] = value;
    for (const Tree* tree : trees())
        for (const Expr& scalar : tree->scalars) {
            const std::string& name = scalar.as<Variable>()->name;
            auto wish = request.scalars.find(name);
            double value = wish == request.scalars.end() ? 0.75 : wish->second;
            numbers_.scalars[name] = is_float(scalar.type()) ? make_value(scalar.type(), value)
                                                             : make_value(scalar.type(), static_cast<int64_t>(value));
        }
}

/// Of all parts together.
std::vector<int64_t> KernelCase::shape_of(const BufferNode& buffer) const {
    std::vector<int64_t> shape = extents_of(declared_shape(buffer), numbers_);
    if (contains(rows_, buffer.name) && !shape.empty()) shape[0] *= parts_;
    return shape;
}

Arguments KernelCase::first_set(const std::vector<Tensor>& outputs, const CaseRequest& request) {
    auto integers = integer_ranges(outputs, numbers_);
    Arguments arguments{.buffers = {}, .sizes = numbers_.sizes, .scalars = numbers_.scalars};
    for (const Tree* tree : trees()) {
        for (const BufferRef& input : tree->inputs) {
            if (arguments.buffers.contains(input->name)) continue;
            HostArray array = host_array(input->type, shape_of(*input), extents_of(input->strides, numbers_));
            auto range = request.ranges.find(input->name);
            uint64_t seed = request.seed * 1009 + arguments.buffers.size();
            if (auto order = request.ascending.find(input->name); order != request.ascending.end())
                fill_ascending(array, order->second, seed);
            else if (request.normal && range == request.ranges.end())
                fill_normal(array, seed);
            else
                fill_random(array, range == request.ranges.end() ? Range{} : range->second,
                            range == request.ranges.end() ? integers[input->name] : whole_numbers_in(range->second),
                            seed);
            if (auto outliers = request.outliers.find(input->name); outliers != request.outliers.end())
                scale_outliers(array, outliers->second, input->name);
            Buffer buffer = device_->allocate(static_cast<int64_t>(array.bytes.size()), input->name);
            buffer.copy_from_host(array.bytes.data());
            arguments.buffers[input->name] = buffer;
            note_input(*input, array, request.folder);
        }
        for (const BufferRef& output : tree->outputs) {
            if (name_of_memory(*tree, output) != output->name) continue;
            const int64_t parts = contains(rows_, output->name) ? parts_ : 1;
            Buffer buffer = device_->allocate(bytes_spanned(*output, numbers_) * parts, output->name);
            if (device_->kind() == DeviceKind::Cuda) buffer.fill(0xff);
            arguments.buffers[output->name] = buffer;
        }
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

Arguments KernelCase::arguments_of_part(const Arguments& all, int64_t part) const {
    Arguments own = all;
    for (const std::string& name : rows_) {
        Buffer& buffer = own.buffers.at(name);
        const int64_t bytes = buffer.bytes() / parts_;
        buffer = buffer.view(part * bytes, bytes, name);
    }
    if (auto scalar = own.scalars.find("part"); scalar != own.scalars.end())
        scalar->second = make_value(scalar->second.type, part);
    return own;
}

void KernelCase::add_set(const Arguments& arguments) {
    std::vector<Launch>& set = sets_.emplace_back();
    for (int64_t part = 0; part < parts_; ++part)
        for (const Executable& kernel : kernels_) {
            const std::vector<Launch> launches = kernel.prepare(arguments_of_part(arguments, part));
            set.insert(set.end(), launches.begin(), launches.end());
        }
}

/// Whether a kernel makes what a later one reads.
bool KernelCase::is_handed_on(const std::string& name) const {
    bool made = false;
    auto is = [&](const BufferRef& buffer) { return buffer->name == name; };
    for (const Tree* tree : trees()) {
        if (made && std::ranges::any_of(tree->inputs, is)) return true;
        made = made || std::ranges::any_of(tree->outputs, is);
    }
    return false;
}

void KernelCase::note_input(const BufferNode& input, const HostArray& array, const std::string& folder) {
    facts_["inputs"].push_back(
        describe(input, shape_of(input), numbers_, write_file(folder, "input_" + input.name, array.bytes)));
}

void KernelCase::note_outputs(const Arguments& arguments, const std::string& folder) {
    for (const Tree* tree : trees())
        for (const BufferRef& output : tree->outputs) {
            const std::string& memory = name_of_memory(*tree, output);
            if (is_handed_on(output->name) || is_handed_on(memory)) continue;
            std::string file;
            if (!folder.empty()) {
                const Buffer& buffer = arguments.buffers.at(memory);
                std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
                buffer.copy_to_host(bytes.data());
                file = write_file(folder, "output_" + output->name, bytes);
            }
            facts_["outputs"].push_back(describe(*output, shape_of(*output), numbers_, file));
        }
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
