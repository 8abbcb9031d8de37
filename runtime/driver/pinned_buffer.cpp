#include "runtime/driver/pinned_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "runtime/driver/no_host_access.h"

namespace tw {
namespace {

void check_copy(const Device& device, const Buffer& on_device, const PinnedBuffer& pinned, bool is_upload) {
    const char* what = is_upload ? "from" : "to";
    if (!on_device || !pinned)
        throw_error(LaunchError, "copy {} pinned memory: the {} buffer has no memory; allocate it", what,
                    on_device ? "pinned" : "device's");
    for (const Device* owner : {on_device.device().get(), pinned.device().get()})
        if (owner != &device)
            throw_error(LaunchError, "copy {} pinned buffer '{}' by {}: one of '{}' and '{}' is of another device ({})",
                        what, pinned.name(), device.name(), on_device.name(), pinned.name(), owner->name());
    if (on_device.bytes() != pinned.bytes())
        throw_error(LaunchError,
                    "copy {} pinned buffer '{}' of {} bytes: '{}' has {}; give views of equal sizes, view(offset, "
                    "bytes)",
                    what, pinned.name(), pinned.bytes(), on_device.name(), on_device.bytes());
}

}  // namespace

// An event for each stream that copies, behind the last copy there. It holds the stream, so that no other one gets its
// handle.
struct PinnedBuffer::Memory {
    struct Use {
        Stream stream;
        Event copied;
    };
    std::shared_ptr<Device> device;
    void* pointer = nullptr;
    std::mutex mutex;  // of `uses`
    std::vector<Use> uses;

    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
        try {
            wait();
        } catch (...) {  // on a lost device nothing is copied any more
        }
        uses.clear();
        if (pointer) device->free_host_memory(pointer);
    }

    void wait() {
        std::lock_guard lock(mutex);
        for (const Use& use : uses) use.copied.synchronize();
    }

    /// Submits by `copy`, and has wait() know of it.
    template <class Copy>
    void use(const Stream& stream, Copy copy) {
        std::lock_guard lock(mutex);
        auto known = std::ranges::find(uses, stream.handle(), [](const Use& use) { return use.stream.handle(); });
        Event copied = known == uses.end() ? device->create_event() : known->copied;
        copy();
        copied.record(stream);
        if (known == uses.end()) uses.push_back({stream, copied});
    }
};

const std::shared_ptr<Device>& PinnedBuffer::device() const { return memory_->device; }
void* PinnedBuffer::data() const { return static_cast<std::byte*>(memory_->pointer) + offset_; }
void PinnedBuffer::wait() const { memory_->wait(); }

void PinnedBuffer::write_bytes(const void* from, int64_t bytes) const {
    if (bytes != bytes_)
        throw_error(LaunchError, "write: {} bytes for pinned buffer '{}' of {} bytes", bytes, name_, bytes_);
    wait();
    if (bytes > 0) std::memcpy(data(), from, size_t(bytes));
}

PinnedBuffer PinnedBuffer::view(int64_t offset, int64_t bytes, std::string name) const {
    if (offset < 0 || bytes < 0 || offset > bytes_ || bytes > bytes_ - offset)  // by subtraction: a sum could wrap
        throw_error(LaunchError, "view: bytes [{}, {} + {}) are not in pinned buffer '{}' of {} bytes", offset, offset,
                    bytes, name_, bytes_);
    return {memory_, offset_ + offset, bytes, name.empty() ? name_ : std::move(name)};
}

PinnedBuffer Device::allocate_pinned(int64_t bytes, std::string name) {
    if (bytes < 0) throw_error(LaunchError, "allocate_pinned '{}': {} bytes", name, bytes);
    auto memory = std::make_shared<PinnedBuffer::Memory>();
    memory->device = shared_from_this();
    if (bytes > 0) memory->pointer = allocate_host_memory(bytes, name);
    return {std::move(memory), 0, bytes, std::move(name)};
}

void Device::copy(const Buffer& to, const PinnedBuffer& from, const Stream& stream, std::source_location where) {
    check_copy(*this, to, from, true);
    NoHostAccess::check_work(*this, "buffer", to.name(), "copied to", where);
    if (to.bytes() == 0) return;
    const Stream in = stream ? stream : default_stream();
    from.memory_->use(in, [&] { copy_in_later(to.pointer(), from.data(), to.bytes(), in.handle()); });
}

void Device::copy(const PinnedBuffer& to, const Buffer& from, const Stream& stream, std::source_location where) {
    check_copy(*this, from, to, false);
    NoHostAccess::check_work(*this, "pinned buffer", to.name(), "copied to", where);
    if (to.bytes() == 0) return;
    const Stream in = stream ? stream : default_stream();
    to.memory_->use(in, [&] { copy_out_later(to.data(), from.pointer(), to.bytes(), in.handle()); });
}

// Where memory of the host is what it is.
void* Device::allocate_host_memory(int64_t bytes, const std::string& name) {
    constexpr size_t Alignment = 512;
    const size_t rounded = (size_t(bytes) + Alignment - 1) / Alignment * Alignment;
    void* memory = bytes > (int64_t{1} << 46) ? nullptr : std::aligned_alloc(Alignment, rounded);
    if (!memory) throw_error(OutOfMemory, "{}: no {} bytes of host memory for '{}'", this->name(), bytes, name);
    std::memset(memory, 0xff, size_t(bytes));  // NaN in every float type
    return memory;
}

void Device::free_host_memory(void* pointer) noexcept { std::free(pointer); }

}  // namespace tw
