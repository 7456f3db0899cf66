// What Python's side of every compiled module shares: arrays, kernels for this processor, threads.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace weft {

template <class T>
using Array = nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <class A>
bool shaped(const A& array, std::initializer_list<std::int64_t> shape) {
    if (array.ndim() != shape.size()) return false;
    std::size_t axis = 0;
    for (std::int64_t length : shape)
        if ((std::int64_t)array.shape(axis++) != length) return false;
    return true;
}

// Whether this processor has the instructions that kernels of this name are made of.
inline bool runs_here(const std::string& name) {
#if defined(WEFT_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (name == "avx2") return avx2;
    if (name == "avx512")
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
    return name == "baseline";
}

// Those of the kernels built, fastest first, that this processor can run.
template <class K, std::size_t count>
std::vector<const K*> usable(const K* const (&built)[count]) {
    std::vector<const K*> found;
    for (const K* kernels : built)
        if (runs_here(kernels->name)) found.push_back(kernels);
    return found;
}

template <class K, std::size_t count>
const K& named(const K* const (&built)[count], const std::string& name) {
    for (const K* kernels : usable(built))
        if (name == kernels->name) return *kernels;
    throw std::invalid_argument("This processor has no kernels called '" + name + "'.");
}

template <class T, class K>
const auto& of_type(const K& kernels) {
    if constexpr (sizeof(T) == 4) return kernels.single;
    else return kernels.twofold;
}

// Rows are dealt to a fixed number of tasks, each with sums of its own, so that results do not
// depend on how many threads there are.
constexpr std::int64_t TASKS = 32;

template <class Work>
void spread(std::int64_t blocks, std::int64_t threads, const Work& work) {
    const std::int64_t tasks = std::min(blocks, TASKS);
    std::atomic<std::int64_t> next{0};
    const auto run = [&] {
        for (std::int64_t task; (task = next++) < tasks;)
            work(task, blocks * task / tasks, blocks * (task + 1) / tasks);
    };
    std::vector<std::thread> crew;
    for (std::int64_t i = 1; i < std::min(threads, tasks); ++i) crew.emplace_back(run);
    run();
    for (std::thread& thread : crew) thread.join();
}

}  // namespace weft
