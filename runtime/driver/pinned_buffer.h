// Page-locked memory of the host, which a device reads and writes while the host and other streams go on.
//
//   PinnedBuffer batch = device->allocate_pinned(bytes, "batch");
//   Stream uploads = device->create_stream();
//   Event there = device->create_event();
//   batch.write(values);                    // waits for copies that still use it
//   device->copy(x, batch, uploads);        // returns at once
//   there.record(uploads);
//   stream.wait(there);                     // work on `stream` from here on sees x; the host does not wait
//
// Streams are not ordered among each other, nor with what the host does to the memory: an event orders streams, and
// write(), read() and wait() wait for the copies of this memory alone.
#pragma once
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/driver/driver.h"

namespace tw {

/// A handle to bytes; copies and views share them. They go back when the last handle is gone and copies have ended.
class PinnedBuffer {
public:
    PinnedBuffer() = default;

    explicit operator bool() const { return memory_ != nullptr; }
    int64_t bytes() const { return bytes_; }
    const std::string& name() const { return name_; }
    const std::shared_ptr<Device>& device() const;

    /// Where it lies, at a multiple of 64 bytes at least unless it is a view. What is done there has to wait() first.
    void* data() const;
    /// All of it as elements, as many as fit.
    template <class T>
    std::span<T> as() const {
        return {static_cast<T*>(data()), size_t(bytes_) / sizeof(T)};
    }

    /// Until all copies from and to this memory, views included, have ended that were submitted before.
    void wait() const;
    /// wait(), then all bytes. Throws LaunchError if the vector has another size.
    template <class T>
    void write(const std::vector<T>& values) const {
        write_bytes(values.data(), int64_t(values.size() * sizeof(T)));
    }
    template <class T>
    std::vector<T> read() const {
        wait();
        std::span<const T> all = as<T>();
        return {all.begin(), all.end()};
    }

    /// A part of it. Throws LaunchError if that leaves it.
    PinnedBuffer view(int64_t offset, int64_t bytes, std::string name = "") const;

private:
    friend class Device;
    struct Memory;
    PinnedBuffer(std::shared_ptr<Memory> memory, int64_t offset, int64_t bytes, std::string name)
        : memory_(std::move(memory)), offset_(offset), bytes_(bytes), name_(std::move(name)) {}
    void write_bytes(const void* from, int64_t bytes) const;
    std::shared_ptr<Memory> memory_;
    int64_t offset_ = 0, bytes_ = 0;
    std::string name_;
};

}  // namespace tw
