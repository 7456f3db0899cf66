// What happens to particles between the matrix products of the gated transition: plain data, shared
// by the module and its kernels.
//
// Particles of a row lie together: z, gate, candidate and spread are (rows, particles, latent), and
// inward, the product of the three layers that read the state, is (rows, particles, 2 hidden +
// latent). Products come without their layers' biases, except the candidate's.
#pragma once
#include <cstdint>

#include "scan.hpp"

namespace weft {

template <class T>
struct Swarm {
    std::int64_t rows, particles, latent, hidden;
    const T *state_precision, *state_information;    // (rows, latent)
    const T* points;                                 // of particle k, row n: k * particle + n * row
    std::int64_t point_particle, point_row;
    const T *low, *high;                             // (latent)
    const T *prior_precision, *prior_information;    // (latent)
    const T *inward_bias, *gate_bias, *spread_bias;  // (2 hidden + latent), (latent), (latent)
    T *z, *inward, *gate, *candidate, *spread;
    T *precision, *information;                      // the mixture's, or cotangents of it
    T *d_inward, *d_gate, *d_candidate, *d_spread;
    T *d_precision, *d_information;                  // of the state
};

// Sums over rows and particles that `unsettle` adds to, (SUMS, latent): gradients of the prior's
// precision and information and of the biases of gate, linear path and spread, and the candidate's
// as far as it does not come through the spread.
constexpr int SUMS = 6;

// One instruction set's passes over rows `first` to `last`; `unplace` reads the gradient of z in
// its place.
template <class T>
struct Passes {
    void (*place)(const Swarm<T>&, std::int64_t first, std::int64_t last);
    void (*rectify)(const Swarm<T>&, std::int64_t first, std::int64_t last);
    std::int64_t (*scratch)(const Swarm<T>&);  // of `settle` and `unsettle`, in units of T
    void (*settle)(const Swarm<T>&, std::int64_t first, std::int64_t last, T* scratch);
    void (*unsettle)(const Swarm<T>&, std::int64_t first, std::int64_t last, T* scratch, T* sums);
    void (*unrectify)(const Swarm<T>&, std::int64_t first, std::int64_t last, T* sums);
    void (*unplace)(const Swarm<T>&, std::int64_t first, std::int64_t last);
};

struct MomentKernels {
    const char* name;
    Passes<float> single;
    Passes<double> twofold;
};

}  // namespace weft
