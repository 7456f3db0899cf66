// Python's side of the passes over particles: checks shapes, picks kernels, spreads threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "dispatch.hpp"
#include "moments.hpp"

namespace nb = nanobind;

namespace weft {

#if defined(WEFT_X86)
extern const MomentKernels avx512_kernels, avx2_kernels;
#endif
extern const MomentKernels baseline_kernels;

namespace {

const MomentKernels* const BUILT[] = {
#if defined(WEFT_X86)
    &avx512_kernels, &avx2_kernels,
#endif
    &baseline_kernels};

template <class T>
const Passes<T>& passes(const std::string& name) {
    return of_type<T>(named(BUILT, name));
}

template <class T>
using Strided = nb::ndarray<const T, nb::device::cpu>;

// A swarm of so many rows, particles, dimensions; arrays of particles are (rows, particles, width).
template <class T>
Swarm<T> swarm(const Array<T>& particles, std::int64_t latent, std::int64_t hidden) {
    require(particles.ndim() == 3, "Particles must be (rows, particles, width).");
    Swarm<T> s{};
    s.rows = particles.shape(0);
    s.particles = particles.shape(1);
    s.latent = latent;
    s.hidden = hidden;
    require(s.particles > 0 && latent > 0 && hidden > 0, "Sizes must be positive.");
    return s;
}

template <class T>
T* rows_of(const Array<T>& array, const Swarm<T>& s) {
    require(shaped(array, {s.rows, s.latent}), "Gaussians must be (rows, latent).");
    return array.data();
}

template <class T>
T* particles_of(const Array<T>& array, const Swarm<T>& s) {
    require(shaped(array, {s.rows, s.particles, s.latent}),
            "Particles must be (rows, particles, latent).");
    return array.data();
}

template <class T>
T* inward_of(const Array<T>& array, const Swarm<T>& s) {
    require(shaped(array, {s.rows, s.particles, 2 * s.hidden + s.latent}),
            "What the state's layers give must be (rows, particles, 2 hidden + latent).");
    return array.data();
}

// A state (rows, latent), points (particles, rows, latent), bounds (2, latent), and where the
// particles lie.
template <class T>
Swarm<T> placed(const Array<const T>& precision, const Array<const T>& information,
                const Strided<T>& points, const Array<const T>& bounds, const Array<T>& z) {
    Swarm<T> s = swarm(z, z.ndim() == 3 ? z.shape(2) : 0, 1);
    for (const auto* array : {&precision, &information})
        require(shaped(*array, {s.rows, s.latent}), "The state must be (rows, latent).");
    require(shaped(points, {s.particles, s.rows, s.latent}) &&
                (s.latent == 1 || points.stride(2) == 1),
            "Points must be (particles, rows, latent), dense in the last axis.");
    require(shaped(bounds, {2, s.latent}), "Bounds must be (2, latent).");
    s.state_precision = precision.data();
    s.state_information = information.data();
    s.points = points.data();
    s.point_particle = points.stride(0);
    s.point_row = points.stride(1);
    s.low = bounds.data();
    s.high = s.low + s.latent;
    s.z = z.data();
    return s;
}

template <class T>
void give_biases(Swarm<T>& s, const Array<const T>& weights) {
    require(shaped(weights, {weight_count(s.latent, s.hidden)}), "The weights have another size.");
    const std::int64_t D = s.latent, H = s.hidden;
    s.inward_bias = weights.data() + (2 * H + D) * D;
    s.gate_bias = s.inward_bias + 2 * H + D + D * H;
    s.spread_bias = s.gate_bias + D + D * H + D + D * D;
}

// Layers' products, weights and prior: what moments are made of.
template <class T>
Swarm<T> pushed(const Array<const T>& weights, const Array<const T>& prior,
                const Array<T>& inward, const Array<T>& gate, const Array<T>& candidate,
                const Array<T>& spread) {
    const std::int64_t latent = gate.ndim() == 3 ? gate.shape(2) : 0;
    const std::int64_t width = inward.ndim() == 3 ? inward.shape(2) : 0;
    Swarm<T> s = swarm(gate, latent, (width - latent) / 2);
    s.inward = inward_of(inward, s);
    s.gate = gate.data();
    s.candidate = particles_of(candidate, s);
    s.spread = particles_of(spread, s);
    require(shaped(prior, {2, latent}), "The prior must be (2, latent).");
    s.prior_precision = prior.data();
    s.prior_information = prior.data() + latent;
    give_biases(s, weights);
    return s;
}

// Run `work(first, last, sums)` over rows; `sums` are added up in the order of tasks.
template <class T, class Work>
void add_up(std::int64_t rows, std::int64_t threads, const Array<T>& sums, const Work& work) {
    const std::size_t size = sums.size();
    T* total = sums.data();
    std::vector<std::vector<T>> parts(TASKS);
    spread(rows, threads, [&](std::int64_t task, std::int64_t first, std::int64_t last) {
        parts[task].resize(size);
        work(first, last, parts[task].data());
    });
    for (const std::vector<T>& part : parts)
        for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
}

template <class T>
void place(Array<const T> precision, Array<const T> information, Strided<T> points,
           Array<const T> bounds, Array<T> z, const std::string& kernels, std::int64_t threads) {
    const Swarm<T> s = placed(precision, information, points, bounds, z);
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    spread(s.rows, threads, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        run.place(s, first, last);
    });
}

template <class T>
void unplace(Array<const T> precision, Array<const T> information, Strided<T> points,
             Array<const T> bounds, Array<T> d_z, Array<T> d_precision, Array<T> d_information,
             const std::string& kernels, std::int64_t threads) {
    Swarm<T> s = placed(precision, information, points, bounds, d_z);
    s.d_precision = rows_of(d_precision, s);
    s.d_information = rows_of(d_information, s);
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    spread(s.rows, threads, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        run.unplace(s, first, last);
    });
}

template <class T>
void rectify(Array<const T> weights, Array<T> inward, std::int64_t hidden,
             const std::string& kernels, std::int64_t threads) {
    const std::int64_t width = inward.ndim() == 3 ? inward.shape(2) : 0;
    Swarm<T> s = swarm(inward, width - 2 * hidden, hidden);
    s.inward = inward.data();
    give_biases(s, weights);
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    spread(s.rows, threads, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        run.rectify(s, first, last);
    });
}

template <class T>
void unrectify(Array<T> inward, Array<T> d_inward, Array<T> sums, const std::string& kernels,
               std::int64_t threads) {
    const std::int64_t width = inward.ndim() == 3 ? inward.shape(2) : 0;
    const std::int64_t hidden = sums.size() / 2;
    Swarm<T> s = swarm(inward, width - 2 * hidden, hidden);
    s.inward = inward.data();
    s.d_inward = inward_of(d_inward, s);
    require(shaped(sums, {2 * hidden}), "Sums must be (2 hidden).");
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    add_up(s.rows, threads, sums, [&](std::int64_t first, std::int64_t last, T* part) {
        run.unrectify(s, first, last, part);
    });
}

template <class T>
void settle(Array<const T> weights, Array<const T> prior, Array<T> inward, Array<T> gate,
            Array<T> candidate, Array<T> spread_, Array<T> precision, Array<T> information,
            const std::string& kernels, std::int64_t threads) {
    Swarm<T> s = pushed(weights, prior, inward, gate, candidate, spread_);
    s.precision = rows_of(precision, s);
    s.information = rows_of(information, s);
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    spread(s.rows, threads, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        std::vector<T> scratch(run.scratch(s));
        run.settle(s, first, last, scratch.data());
    });
}

template <class T>
void unsettle(Array<const T> weights, Array<const T> prior, Array<T> inward, Array<T> gate,
              Array<T> candidate, Array<T> spread_, Array<T> cot_precision,
              Array<T> cot_information, Array<T> d_inward, Array<T> d_gate,
              Array<T> d_candidate, Array<T> d_spread, Array<T> sums, const std::string& kernels,
              std::int64_t threads) {
    Swarm<T> s = pushed(weights, prior, inward, gate, candidate, spread_);
    s.precision = rows_of(cot_precision, s);
    s.information = rows_of(cot_information, s);
    s.d_inward = inward_of(d_inward, s);
    s.d_gate = particles_of(d_gate, s);
    s.d_candidate = particles_of(d_candidate, s);
    s.d_spread = particles_of(d_spread, s);
    require(shaped(sums, {SUMS, s.latent}), "Sums must be (6, latent).");
    const Passes<T>& run = passes<T>(kernels);
    nb::gil_scoped_release released;
    add_up(s.rows, threads, sums, [&](std::int64_t first, std::int64_t last, T* part) {
        std::vector<T> scratch(run.scratch(s));
        run.unsettle(s, first, last, scratch.data(), part);
    });
}

// Arrays are taken as they are or not at all: what a copy was told would be lost.
auto array(const char* name) { return nb::arg(name).noconvert(); }

template <class T>
void define(nb::module_& module) {
    const nb::arg kernels("kernels"), threads("threads");
    module.def("place", &place<T>, array("precision"), array("information"), array("points"),
               array("bounds"), array("z"), kernels, threads);
    module.def("unplace", &unplace<T>, array("precision"), array("information"), array("points"),
               array("bounds"), array("d_z"), array("d_precision"), array("d_information"),
               kernels, threads);
    module.def("rectify", &rectify<T>, array("weights"), array("inward"), nb::arg("hidden"),
               kernels, threads);
    module.def("unrectify", &unrectify<T>, array("inward"), array("d_inward"), array("sums"),
               kernels, threads);
    module.def("settle", &settle<T>, array("weights"), array("prior"), array("inward"),
               array("gate"), array("candidate"), array("spread"), array("precision"),
               array("information"), kernels, threads);
    module.def("unsettle", &unsettle<T>, array("weights"), array("prior"), array("inward"),
               array("gate"), array("candidate"), array("spread"), array("cot_precision"),
               array("cot_information"), array("d_inward"), array("d_gate"), array("d_candidate"),
               array("d_spread"), array("sums"), kernels, threads);
}

}  // namespace
}  // namespace weft

NB_MODULE(_moments, module) {
    module.doc() = "Passes over particles between a large transition's matrix products.";
    weft::define<float>(module);
    weft::define<double>(module);
}
