// What a scan is given and what it gives: plain data, shared by the module and its kernels.
//
// A scan carries a Gaussian message along time:
//
//     posterior_t = fuse(message_t, factor_t, future_t; prior)
//     z_k         = mean(posterior_t) + std(posterior_t) * noise_{t,k}
//     message_t+1 = moments of the mixture over k of  prior * f(z_k),   or the prior if not seen
//
// with f the gated transition. Arrays are row-major, the latent axis last.
#pragma once
#include <cstdint>

namespace weft {

// Noise of particle k at step t and row n: points[t * step + k * particle + n * row + d], or, with
// no points given, a pure function of (seed, t, n, k, d); mirrored particles come in pairs ±.
template <class T>
struct Noise {
    const T* points;
    std::int64_t step, particle, row;
    std::uint64_t seed;
    bool mirrored;
};

template <class T>
struct Scan {
    std::int64_t steps, rows, latent, hidden, particles;
    std::int64_t data_rows;  // rows of factor, future and seen; rows beyond start over
    // inward (2 hidden + latent, latent), its bias; gate, bias; candidate, bias; spread, bias
    const T* weights;
    const T *prior_precision, *prior_information, *low, *high;      // (latent)
    const T *start_precision, *start_information;                  // (rows, latent)
    const T *factor_precision, *factor_information;                // (steps, data_rows, latent)
    const T *future_precision, *future_information;
    std::int64_t future_step, future_row;
    const std::uint8_t* seen;  // (steps, data_rows)
    Noise<T> noise;
    bool reversed;                               // from the last step to the first
    T *message_precision, *message_information;  // (steps + 1, rows, latent)
    // Mean of the particles less information / precision: rounding, but the gradient divides it by
    // the variance. Not kept if there will be no gradient.
    T* drift;
    // with one particle, if wanted: what it was drawn from, and where it came to lie
    T *posterior_precision, *posterior_information, *states;  // (steps, rows, latent)

    // Where the t-th step on the way lies in memory, and the message that reaches it: messages are
    // kept in the order of steps, with the one that follows all steps at the far end.
    std::int64_t at(std::int64_t t) const { return reversed ? steps - 1 - t : t; }
    std::int64_t message_at(std::int64_t t) const { return reversed ? steps - t : t; }
};

// Cotangents in, gradients out; the last two are summed over rows and steps.
template <class T>
struct Gradients {
    const T *message_precision, *message_information;  // (steps + 1, rows, latent)
    const T *posterior_precision, *posterior_information, *states;
    T *start_precision, *start_information;            // (rows, latent)
    T *factor_precision, *factor_information;          // (steps, rows, latent)
    T *future_precision, *future_information;
    T* weights;
    T* prior;  // precision, then information
};

inline std::int64_t weight_count(std::int64_t latent, std::int64_t hidden) {
    const std::int64_t inward = 2 * hidden + latent;
    return inward * (latent + 1) + 2 * latent * (hidden + 1) + latent * (latent + 1);
}

// One instruction set's kernels. A block is as many rows as its vectors hold.
template <class T>
struct Kernel {
    std::int64_t (*blocks)(const Scan<T>&);
    std::int64_t (*scratch)(const Scan<T>&);  // in units of T, beyond alignment
    void (*forward)(const Scan<T>&, std::int64_t first, std::int64_t last, T* scratch);
    void (*backward)(const Scan<T>&, const Gradients<T>&, std::int64_t first, std::int64_t last,
                     T* scratch);
    void (*normal)(const Scan<T>&, T* out, T* scratch);  // (steps, particles, rows, latent)
};

struct Kernels {
    const char* name;
    Kernel<float> single;
    Kernel<double> twofold;
};

}  // namespace weft
