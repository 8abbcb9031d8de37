#include "runtime/emulator/memory/statistics.h"

#include <algorithm>
#include <tuple>

#include "runtime/emulator/host/module.h"

namespace tw::emulator {

uint64_t count_wavefronts(const std::vector<uintptr_t>& addresses, size_t bytes) {
    const size_t lanes_at_once = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
    uint64_t wavefronts = 0;
    for (size_t begin = 0; begin < addresses.size(); begin += lanes_at_once) {
        std::vector<uintptr_t> words;
        for (size_t i = begin; i < std::min(begin + lanes_at_once, addresses.size()); ++i)
            for (uintptr_t word = addresses[i] / 4; word <= (addresses[i] + bytes - 1) / 4; ++word)
                words.push_back(word);
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        unsigned of_bank[32] = {};
        for (uintptr_t word : words) ++of_bank[word % 32];
        wavefronts += *std::max_element(std::begin(of_bank), std::end(of_bank));
    }
    return wavefronts;
}

uint64_t count_sectors(const std::vector<uintptr_t>& addresses, size_t bytes) {
    std::vector<uintptr_t> sectors;
    for (uintptr_t address : addresses)
        for (uintptr_t sector = address / 32; sector <= (address + bytes - 1) / 32; ++sector) sectors.push_back(sector);
    std::sort(sectors.begin(), sectors.end());
    return uint64_t(std::unique(sectors.begin(), sectors.end()) - sectors.begin());
}

void Tally::add(const Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, uint32_t site,
                uint32_t thread) {
    const bool writes = kind != AccessKind::Read;
    Site& entry = sites_[{site, writes, &memory, bytes}];
    if (entry.addresses.empty()) {
        entry.counts.memory = memory.name;
        entry.counts.shared = memory.shared;
        entry.counts.writes = writes;
        entry.counts.bytes = int(bytes);
        entry.addresses.resize(num_threads_);
    }
    ++entry.counts.accesses;
    entry.addresses[thread].push_back(address);
    if (kind == AccessKind::Atomic) ++total_.atomics;
    if (memory.shared) {
        ++(writes ? total_.shared_writes : total_.shared_reads);
        total_.shared_bytes += bytes;
    } else {
        ++(writes ? total_.global_writes : total_.global_reads);
        total_.global_bytes += bytes;
    }
}

void Tally::count_requests(Site& site, unsigned warp) {
    const unsigned begin = warp * 32, end = std::min(begin + 32, num_threads_);
    size_t most = 0;
    for (unsigned t = begin; t < end; ++t) most = std::max(most, site.addresses[t].size());
    const size_t bytes = size_t(site.counts.bytes);
    std::vector<uintptr_t> request;
    for (size_t i = 0; i < most; ++i) {
        request.clear();
        for (unsigned t = begin; t < end; ++t)
            if (i < site.addresses[t].size()) request.push_back(site.addresses[t][i]);
        ++site.counts.requests;
        if (!site.counts.shared) {
            site.counts.sectors += count_sectors(request, bytes);
            continue;
        }
        uint64_t wavefronts = count_wavefronts(request, bytes);
        site.counts.wavefronts += wavefronts;
        size_t lanes_at_once = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
        site.counts.conflicts += wavefronts - (request.size() + lanes_at_once - 1) / lanes_at_once;
    }
    for (unsigned t = begin; t < end; ++t) site.addresses[t].clear();
}

void Tally::flush() {
    for (auto& [key, site] : sites_)
        for (unsigned warp = 0; warp * 32 < num_threads_; ++warp) count_requests(site, warp);
}

Statistics Tally::finish(const Module& module) {
    flush();
    for (auto& [key, site] : sites_) {
        Statistics::Site& counts = site.counts;
        const Location& where = module.locate(key.site);
        counts.source = where.source;
        counts.line = where.line;
        (counts.shared ? total_.shared_requests : total_.global_requests) += counts.requests;
        total_.shared_wavefronts += counts.wavefronts;
        total_.shared_bank_conflicts += counts.conflicts;
        total_.global_sectors += counts.sectors;
        total_.sites.push_back(counts);
    }
    std::sort(total_.sites.begin(), total_.sites.end(), [](auto& a, auto& b) {
        return std::tie(a.source, a.line, a.memory, a.writes, a.bytes, a.accesses) <
               std::tie(b.source, b.line, b.memory, b.writes, b.bytes, b.accesses);
    });
    return std::move(total_);
}

}  // namespace tw::emulator
