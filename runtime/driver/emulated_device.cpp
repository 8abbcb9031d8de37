#include "runtime/driver/emulated_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "runtime/driver/arch.h"
#include "runtime/emulator/threads/random.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int Poison = 0xff;
constexpr size_t Alignment = 512;          // as cuMemAlloc gives
constexpr size_t RedZoneBytes = 64 << 10;  // on both sides of a buffer; pages that nobody touches take no memory

struct EmulatedKernel final : Kernel::State {
    std::shared_ptr<const emulator::Module> module;
};

void* address(uint64_t pointer) { return reinterpret_cast<void*>(pointer); }
uint64_t pointer_of(const void* address) { return reinterpret_cast<uint64_t>(address); }

// The emulator runs one launch at a time in a process, whatever the device.
std::recursive_mutex& emulator_mutex() {
    static std::recursive_mutex mutex;
    return mutex;
}

// Kernels that are known already are not compiled again, and the others are kept for the next who asks.
std::vector<std::shared_ptr<const emulator::Module>> compiled(std::span<const emulator::Source> sources) {
    std::lock_guard lock(emulator_mutex());
    return emulator::compile_together(sources);
}

std::optional<emulator::TensorMapBits> tensor_map_in(const Argument& argument) {
    emulator::TensorMapBits map;
    if (argument.value().size() < sizeof map) return std::nullopt;
    std::memcpy(static_cast<void*>(&map), argument.value().data(), sizeof map);
    if (map.magic != emulator::TensorMapBits::Magic) return std::nullopt;
    return map;
}

bool is_all_poison(const emulator::Region& region) {
    auto* bytes = static_cast<const unsigned char*>(region.base);
    return std::all_of(bytes, bytes + region.bytes, [](unsigned char byte) { return byte == Poison; });
}

emulator::Launch as_emulator_launch(const Kernel::State& kernel, const LaunchShape& shape) {
    return {.kernel = kernel.image.entry,
            .grid = {unsigned(shape.grid.x), unsigned(shape.grid.y), unsigned(shape.grid.z)},
            .threads = unsigned(shape.block.x),
            .cluster = unsigned(shape.cluster),
            .shared_bytes = size_t(shape.dynamic_shared_bytes),
            .starts_early = shape.starts_early || shape.waits_itself};
}

std::string report_text(const Launch& launch, const emulator::Report& report) {
    std::string text = fmt::format("{}: the emulator reports", launch.kernel().entry());
    for (const auto& finding : report.findings) text += fmt::format("\n{}", finding.message);
    return text;
}

void add(emulator::Statistics& sum, const emulator::Statistics& more) {
    using S = emulator::Statistics;
    for (auto count :
         {&S::shared_reads, &S::shared_writes, &S::shared_bytes, &S::global_reads, &S::global_writes, &S::global_bytes,
          &S::atomics, &S::shared_requests, &S::shared_wavefronts, &S::shared_bank_conflicts, &S::global_requests,
          &S::global_sectors, &S::box_bytes, &S::barriers, &S::warp_operations})
        sum.*count += more.*count;
}

// Bytes from its first element to the end of its last, and of the last 16 bytes, which stores write as a whole.
uint64_t span_of(const emulator::TensorMapBits& map) {
    const auto element = static_cast<uint64_t>(bytes_of(map.element));
    uint64_t span = map.sizes[0] * element;
    for (int d = 1; d < map.rank; ++d) span += (map.sizes[d] - 1) * map.strides[d - 1];
    return (span + 15) / 16 * 16;
}

}  // namespace

EmulatedDevice::EmulatedDevice(std::string_view arch) {
    properties_ = properties_of(arch);
    properties_.name = fmt::format("emulated {}", arch);
}

void EmulatedDevice::set_options(const emulator::Options& options) {
    std::lock_guard lock(mutex_);
    options_ = options;
}

emulator::Report EmulatedDevice::last_report() const {
    std::lock_guard lock(mutex_);
    return report_;
}

emulator::Statistics EmulatedDevice::statistics() const {
    std::lock_guard lock(mutex_);
    return statistics_;
}

void EmulatedDevice::reset_statistics() {
    std::lock_guard lock(mutex_);
    statistics_ = {};
}

uint64_t EmulatedDevice::allocate_memory(int64_t bytes, const std::string& name) {
    size_t rounded = (size_t(bytes) + Alignment - 1) / Alignment * Alignment;
    void* memory = bytes > (int64_t{1} << 46) ? nullptr : std::aligned_alloc(Alignment, rounded + 2 * RedZoneBytes);
    if (!memory) throw_error(OutOfMemory, "{}: no {} bytes for '{}'", properties_.name, bytes, name);
    uint64_t pointer = pointer_of(memory) + RedZoneBytes;
    std::memset(address(pointer), Poison, size_t(bytes));
    std::lock_guard lock(mutex_);
    allocations_[pointer] = {bytes, {}, name};
    return pointer;
}

void EmulatedDevice::free_memory(uint64_t pointer, int64_t) noexcept {
    std::lock_guard lock(mutex_);
    late_.run_all();  // some may be from or to it
    allocations_.erase(pointer);
    std::free(address(pointer - RedZoneBytes));
}

void EmulatedDevice::register_memory(uint64_t pointer, int64_t bytes, const std::string& name) {
    std::lock_guard lock(mutex_);
    Allocation* around = allocation_around(pointer, bytes, name);
    if (!around) {
        around = &allocations_[pointer];
        *around = {.bytes = bytes, .name = name, .owned = false};
    }
    ++around->wraps;
    mark_written(pointer, bytes);  // its owner has written it, we trust
}

void EmulatedDevice::unregister_memory(uint64_t pointer) noexcept {
    std::lock_guard lock(mutex_);
    auto after = allocations_.upper_bound(pointer);
    if (after == allocations_.begin()) return;
    auto around = std::prev(after);
    const auto& [begin, allocation] = *around;
    bool inside = pointer == begin || pointer - begin < uint64_t(allocation.bytes);
    if (inside && --around->second.wraps == 0 && !allocation.owned) allocations_.erase(around);
}

// The known allocation that the bytes lie in; nullptr if they touch none.
EmulatedDevice::Allocation* EmulatedDevice::allocation_around(uint64_t pointer, int64_t bytes,
                                                              const std::string& name) {
    const uint64_t end = pointer + uint64_t(bytes);
    auto refuse_overlap = [&](uint64_t begin, const Allocation& other) {
        throw_error(LaunchError,
                    "wrap '{}': its {} bytes at {:#x} lie partly in the {} bytes of '{}' at {:#x}; wrap the whole of "
                    "both once, and take view()",
                    name, bytes, pointer, other.bytes, other.name, begin);
    };
    auto next = allocations_.upper_bound(pointer);
    if (next != allocations_.end() && next->first < end) refuse_overlap(next->first, next->second);
    if (next == allocations_.begin()) return nullptr;
    auto& [begin, allocation] = *std::prev(next);
    const uint64_t last = begin + uint64_t(allocation.bytes);
    if (pointer == begin && bytes == allocation.bytes) return &allocation;
    if (pointer >= last) return nullptr;
    if (end > last) refuse_overlap(begin, allocation);
    return &allocation;
}

EmulatedDevice::Allocation* EmulatedDevice::allocation_of(uint64_t pointer) {
    auto next = allocations_.upper_bound(pointer);
    return next == allocations_.begin() ? nullptr : &std::prev(next)->second;
}

void EmulatedDevice::mark_written(uint64_t pointer, int64_t bytes) {
    std::lock_guard lock(mutex_);
    Allocation* allocation = allocation_of(pointer);
    if (!allocation || bytes == 0) return;
    uint64_t begin = pointer, end = pointer + uint64_t(bytes);
    auto& written = allocation->written;
    auto part = written.upper_bound(begin);
    if (part != written.begin() && std::prev(part)->second >= begin) --part;
    while (part != written.end() && part->first <= end) {  // joins what it touches
        begin = std::min(begin, part->first);
        end = std::max(end, part->second);
        part = written.erase(part);
    }
    written[begin] = end;
}

bool EmulatedDevice::anything_written(uint64_t pointer, int64_t bytes) {
    Allocation* allocation = allocation_of(pointer);
    if (!allocation) return true;
    auto after = allocation->written.lower_bound(pointer + uint64_t(bytes));
    return after != allocation->written.begin() && std::prev(after)->second > pointer;
}

void EmulatedDevice::synchronize() {
    std::lock_guard lock(mutex_);
    late_.run_all();
}

void EmulatedDevice::copy_in(uint64_t to, const void* from, int64_t bytes) {
    synchronize();
    std::memcpy(address(to), from, size_t(bytes));
    mark_written(to, bytes);
}

void EmulatedDevice::copy_out(void* to, uint64_t from, int64_t bytes) {
    synchronize();
    std::memcpy(to, address(from), size_t(bytes));
}

void EmulatedDevice::copy_in_later(uint64_t to, const void* from, int64_t bytes, void* stream) {
    std::lock_guard lock(mutex_);
    late_.submit(stream, [=, this] {
        std::memcpy(address(to), from, size_t(bytes));
        mark_written(to, bytes);
    });
}

void EmulatedDevice::copy_out_later(void* to, uint64_t from, int64_t bytes, void* stream) {
    std::lock_guard lock(mutex_);
    late_.submit(stream, [=] { std::memcpy(to, address(from), size_t(bytes)); });
}

void EmulatedDevice::copy_across(uint64_t to, uint64_t from, int64_t bytes, void* stream) {
    std::lock_guard lock(mutex_);
    late_.run(stream);
    std::memmove(address(to), address(from), size_t(bytes));
    if (anything_written(from, bytes)) mark_written(to, bytes);
}

void EmulatedDevice::fill_memory(uint64_t pointer, uint8_t value, int64_t bytes) {
    synchronize();
    std::memset(address(pointer), value, size_t(bytes));
    mark_written(pointer, bytes);
}

void EmulatedDevice::fill_later(uint64_t to, uint32_t pattern, int64_t element_bytes, int64_t bytes, void* stream) {
    std::lock_guard lock(mutex_);
    late_.run(stream);
    auto* memory = static_cast<std::byte*>(address(to));
    for (int64_t at = 0; at < bytes; at += element_bytes) std::memcpy(memory + at, &pattern, size_t(element_bytes));
    mark_written(to, bytes);
}

void EmulatedDevice::drop_stream(void* stream) noexcept {
    wait_stream(stream);
    delete static_cast<char*>(stream);
}

void EmulatedDevice::wait_stream(void* stream) {
    std::lock_guard lock(mutex_);
    late_.run(stream);
}

void* EmulatedDevice::make_event() {
    auto* event = new EmulatedEvent{.time = Clock::now()};
    std::lock_guard lock(mutex_);
    events_.insert(event);
    return event;
}

void EmulatedDevice::drop_event(void* event) noexcept {
    std::lock_guard lock(mutex_);
    events_.erase(event);
    delete static_cast<EmulatedEvent*>(event);
}

void EmulatedDevice::register_event(void* event, const std::string& name) {
    std::lock_guard lock(mutex_);
    if (!events_.contains(event))
        throw_error(LaunchError, "wrap_event '{}': {} has made no such event; give the handle() of one of its own",
                    name, properties_.name);
}

void EmulatedDevice::record_event(void* event, void* stream) {
    std::lock_guard lock(mutex_);
    *static_cast<EmulatedEvent*>(event) = {.time = Clock::now(), .stream = stream, .copies = late_.given(stream)};
}

void EmulatedDevice::wait_event(void* event) {
    std::lock_guard lock(mutex_);
    const auto& reached = *static_cast<EmulatedEvent*>(event);
    late_.run(reached.stream, reached.copies);
}

double EmulatedDevice::event_seconds(void* begin, void* end) {
    auto elapsed = static_cast<EmulatedEvent*>(end)->time - static_cast<EmulatedEvent*>(begin)->time;
    return std::chrono::duration<double>(elapsed).count();
}

std::vector<std::shared_ptr<Kernel::State>> EmulatedDevice::load_kernels(std::span<const KernelImage> images) {
    std::vector<emulator::Source> sources;
    for (const KernelImage& image : images)
        sources.push_back({.name = image.entry, .text = image.source, .line_notes = image.line_notes});
    std::vector<std::shared_ptr<Kernel::State>> kernels;
    try {
        for (auto& module : compiled(sources)) {
            auto kernel = std::make_shared<EmulatedKernel>();
            kernel->module = std::move(module);
            kernels.push_back(std::move(kernel));
        }
    } catch (const emulator::CompileFailed& error) {  // its message shows the lines
        throw CompileError(error.site(),
                           fmt::format("{}: {}", images.size() == 1 ? images[0].name : name(), error.what()));
    }
    return kernels;
}

void EmulatedDevice::prepare_kernel(Kernel::State& kernel, const LaunchShape& shape) {
    if (shape.block.y != 1 || shape.block.z != 1)
        throw_error(LaunchError, "{}: the emulator runs blocks of one dimension, not ({}, {}, {})", kernel.image.entry,
                    shape.block.x, shape.block.y, shape.block.z);
    try {
        check_launch(*static_cast<EmulatedKernel&>(kernel).module, as_emulator_launch(kernel, shape));
    } catch (const Error& error) {
        throw LaunchError(error.site(), error.what());
    }
}

void EmulatedDevice::encode_tensor_map(const emulator::TensorMapBits& map, void* bits) {
    std::memcpy(bits, &map, sizeof map);
}

// What a tensor map is of, unless the launch has it as an argument too. Not the whole allocation: of an arena, other
// tensors are in it, which may have been written while this one was not.
void EmulatedDevice::add_tensor(const emulator::TensorMapBits& map, std::vector<emulator::Region>& regions) {
    auto next = allocations_.upper_bound(map.base);
    if (next == allocations_.begin()) return;
    const auto& [pointer, allocation] = *std::prev(next);
    const uint64_t end_of_all = pointer + uint64_t(allocation.bytes);
    const emulator::Region region{.base = address(map.base),
                                  .bytes = size_t(std::min(span_of(map), end_of_all - map.base)),
                                  .name = allocation.name};
    for (const emulator::Region& known : regions) {
        const uint64_t begin = pointer_of(known.base), end = begin + known.bytes;
        if (begin <= map.base && map.base < end) return;
    }
    regions.push_back(region);
}

// One region for each buffer argument; those that overlap become one, which both may touch.
std::vector<emulator::Region> EmulatedDevice::regions_of(const Launch& launch) {
    std::vector<emulator::Region> regions;
    for (const Argument& argument : launch.arguments().arguments()) {
        if (argument.kind() != Argument::Kind::Buffer || argument.buffer().bytes() == 0) continue;
        const Buffer& buffer = argument.buffer();
        regions.push_back({.base = address(buffer.pointer()),
                           .bytes = size_t(buffer.bytes()),
                           .name = buffer.name(),
                           .writable = argument.writable()});
    }
    for (const Argument& argument : launch.arguments().arguments())
        if (auto map = tensor_map_in(argument)) add_tensor(*map, regions);
    std::sort(regions.begin(), regions.end(), [](auto& a, auto& b) { return a.base < b.base; });

    std::vector<emulator::Region> apart;
    for (emulator::Region& region : regions) {
        if (apart.empty() || pointer_of(apart.back().base) + apart.back().bytes <= pointer_of(region.base)) {
            apart.push_back(region);
            continue;
        }
        emulator::Region& joined = apart.back();
        uint64_t end = std::max(pointer_of(joined.base) + joined.bytes, pointer_of(region.base) + region.bytes);
        joined.bytes = end - pointer_of(joined.base);
        joined.writable |= region.writable;
        if (joined.name != region.name) joined.name += "/" + region.name;
    }
    for (emulator::Region& region : apart)
        region.initialised = anything_written(pointer_of(region.base), int64_t(region.bytes));
    return apart;
}

// A launch that found a buffer unwritten and left more than poison in it has written it. Of a single element that
// cannot be told: -1 is poison.
void EmulatedDevice::note_writes(const std::vector<emulator::Region>& regions) {
    for (const emulator::Region& region : regions)
        if (region.writable && !region.initialised && (region.bytes <= sizeof(int64_t) || !is_all_poison(region)))
            mark_written(pointer_of(region.base), int64_t(region.bytes));
}

void EmulatedDevice::launch(const Launch& launch, void* stream) {
    std::lock_guard emulator_lock(emulator_mutex());
    std::lock_guard lock(mutex_);
    late_.run(stream);
    const auto& kernel = static_cast<const EmulatedKernel&>(*launch.kernel().state());
    emulator::Launch run = as_emulator_launch(kernel, launch.shape());
    void** addresses = launch.arguments().addresses();
    run.arguments.assign(addresses, addresses + launch.arguments().size());
    run.regions = regions_of(launch);
    report_ = emulator::run(*kernel.module, run, options_);
    add(statistics_, report_.statistics);
    note_writes(run.regions);
    if (!report_.ok()) throw_error(EmulatorReport, "{}", report_text(launch, report_));
}

std::shared_ptr<Graph::State> EmulatedDevice::make_graph(std::vector<Launch> launches,
                                                         std::vector<std::vector<size_t>> after) {
    auto graph = std::make_shared<Graph::State>();
    graph->device = shared_from_this();
    graph->launches = std::move(launches);
    graph->after = std::move(after);
    return graph;
}

// Any of the launches whose predecessors have run is the next one. Where each waits for the one in front, no dice.
void EmulatedDevice::run_graph(Graph::State& graph, void* stream) {
    std::lock_guard emulator_lock(emulator_mutex());
    std::lock_guard lock(mutex_);
    emulator::Random random(options_.seed + graph_runs_++);
    std::vector<std::vector<size_t>> next(graph.launches.size());
    std::vector<size_t> waits_for, ready;
    for (size_t n = 0; n < graph.launches.size(); ++n) {
        for (size_t before : graph.after[n]) next[before].push_back(n);
        waits_for.push_back(graph.after[n].size());
        if (waits_for[n] == 0) ready.push_back(n);
    }
    while (!ready.empty()) {
        std::swap(ready[random.below(ready.size())], ready.back());
        const size_t n = ready.back();
        ready.pop_back();
        if (!graph.launches[n].empty()) submit(graph.launches[n], stream);
        for (size_t behind : next[n])
            if (--waits_for[behind] == 0) ready.push_back(behind);
    }
}

std::shared_ptr<Device> make_emulated_device(std::string_view arch) { return std::make_shared<EmulatedDevice>(arch); }

EmulatedDevice& as_emulated(Device& device) {
    auto* emulated = dynamic_cast<EmulatedDevice*>(&device);
    if (!emulated) throw_error(LaunchError, "'{}' is no emulated device", device.name());
    return *emulated;
}

}  // namespace tw
