#include "codegen/access/shared_struct.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tw::codegen {
namespace {

constexpr int64_t widest_access = 16;  // bytes

int64_t rounded_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

int64_t bytes_of_array(const BufferNode& buffer) {
    int64_t bytes = bytes_of(buffer.type);
    for (const Expr& extent : buffer.shape) bytes *= require_constant(extent);
    return bytes;
}

/// Members one behind another, from 0 on.
class Members {
public:
    int64_t add(int64_t bytes, int64_t alignment) {
        alignment_ = std::max(alignment_, alignment);
        const int64_t offset = rounded_up(bytes_, alignment);
        bytes_ = offset + bytes;
        return offset;
    }
    int64_t bytes() const { return rounded_up(bytes_, alignment_); }
    int64_t alignment() const { return alignment_; }

private:
    int64_t bytes_ = 0, alignment_ = widest_access;
};

class StructMaker {
public:
    StructMaker(const std::vector<Buffer>& buffers, const std::vector<SharedUnion>& unions) {
        std::vector<bool> stands(unions.size());
        for (const Buffer& buffer : buffers) {
            const int number = place_in_unions(buffer.get(), unions).number;
            if (number < 0)
                places_[buffer.get()] = {all_.add(bytes_of_array(*buffer), alignment_of(*buffer)),
                                         bytes_of_array(*buffer)};
            else if (!stands[static_cast<size_t>(number)])
                add(unions[static_cast<size_t>(number)]);
            if (number >= 0) stands[static_cast<size_t>(number)] = true;
        }
        for (const Buffer& buffer : buffers) result_.places.push_back(places_.at(buffer.get()));
        result_.bytes = all_.bytes();
    }

    SharedStruct result() && { return std::move(result_); }

private:
    void add(const SharedUnion& shared) {
        int64_t bytes = 0, alignment = widest_access;
        for (const std::vector<Buffer>& alternative : shared.alternatives) {
            Members members;
            for (const Buffer& buffer : alternative)
                places_[buffer.get()] = {members.add(bytes_of_array(*buffer), alignment_of(*buffer)),
                                         bytes_of_array(*buffer)};
            bytes = std::max(bytes, members.bytes());
            alignment = std::max(alignment, members.alignment());
        }
        const int64_t offset = all_.add(rounded_up(bytes, alignment), alignment);
        for (const std::vector<Buffer>& alternative : shared.alternatives)
            for (const Buffer& buffer : alternative) places_[buffer.get()].offset += offset;
    }

    Members all_;
    std::map<const BufferNode*, SharedPlace> places_;
    SharedStruct result_;
};

}  // namespace

std::string to_string(const SharedUnion& shared) {
    std::vector<std::string> alternatives;
    for (const std::vector<Buffer>& alternative : shared.alternatives) {
        std::vector<std::string> names;
        for (const Buffer& buffer : alternative) names.push_back(buffer->name);
        alternatives.push_back(fmt::format("{}", fmt::join(names, ", ")));
    }
    return fmt::format("{}", fmt::join(alternatives, " in turn with "));
}

/// Eight swizzled rows repeat themselves, and matrix instructions tell them apart by their addresses.
int64_t alignment_of(const BufferNode& buffer) {
    return std::max<int64_t>({widest_access, 8 * buffer.swizzle, buffer.alignment});
}

SharedStruct shared_struct(const std::vector<Buffer>& buffers, const std::vector<SharedUnion>& unions) {
    return StructMaker(buffers, unions).result();
}

int64_t bytes_of_shared(const std::vector<Buffer>& buffers, const std::vector<SharedUnion>& unions) {
    return shared_struct(buffers, unions).bytes;
}

UnionPlace place_in_unions(const BufferNode* buffer, const std::vector<SharedUnion>& unions) {
    for (size_t u = 0; u < unions.size(); ++u)
        for (size_t a = 0; a < unions[u].alternatives.size(); ++a)
            for (const Buffer& member : unions[u].alternatives[a])
                if (member.get() == buffer) return {static_cast<int>(u), static_cast<int>(a)};
    return {};
}

bool take_turns(const BufferNode* a, const BufferNode* b, const std::vector<SharedUnion>& unions) {
    const UnionPlace one = place_in_unions(a, unions), other = place_in_unions(b, unions);
    return one.number >= 0 && one.number == other.number && one.alternative != other.alternative;
}

}  // namespace tw::codegen
