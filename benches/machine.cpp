// What this machine can do at most, for the limits beside the measures: bytes read per second from memory, and
// multiply-adds (counted as two operations) per second in float32, bfloat16 and int8, all on every thread.
//
//     c++ -O3 -march=native -std=c++20 -pthread benches/machine.cpp -o machine && ./machine [THREADS]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

using Clock = std::chrono::steady_clock;

// Keeps results alive, so that no loop is removed.
static volatile uint64_t sink;

// The best of three runs of `work` on all threads, in seconds.
static double best_of_three(int threads, const std::function<uint64_t(int)>& work) {
  double best = 1e30;
  for (int run = 0; run < 3; run++) {
    std::vector<std::thread> pool;
    auto start = Clock::now();
    for (int t = 0; t < threads; t++) {
      pool.emplace_back([&, t] { sink = sink + work(t); });
    }
    for (auto& thread : pool) {
      thread.join();
    }
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

static void read_bandwidth(int threads) {
  // Far larger than any cache.
  const size_t words = size_t(64) << 20;
  std::vector<std::vector<uint64_t>> buffers(threads, std::vector<uint64_t>(words, 1));
  double seconds = best_of_three(threads, [&](int t) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < words; i += 8) {
      for (int lane = 0; lane < 8; lane++) {
        sums[lane] += buffers[t][i + lane];
      }
    }
    uint64_t total = 0;
    for (uint64_t sum : sums) {
      total += sum;
    }
    return total;
  });
  printf("read bandwidth: %.1f GB/s\n", threads * words * 8 / seconds / 1e9);
}

// Times `step`, which does `ops` operations on each of 16 independent accumulators.
template <typename V, typename F>
static void peak(const char* name, int threads, double ops, V zero, F step) {
  const int repeats = 20'000'000;
  double seconds = best_of_three(threads, [&](int) {
    V sums[16];
    std::fill(sums, sums + 16, zero);
    for (int i = 0; i < repeats; i++) {
#pragma GCC unroll 16
      for (int lane = 0; lane < 16; lane++) {
        sums[lane] = step(sums[lane]);
        // Hides the value, or equal sums would be computed once.
        asm volatile("" : "+v"(sums[lane]));
      }
    }
    uint64_t total = 0;
    for (V& sum : sums) {
      total += reinterpret_cast<const uint32_t*>(&sum)[0];
    }
    return total;
  });
  printf("%s: %.0f GFLOP/s\n", name, threads * ops * 16 * repeats / seconds / 1e9);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : int(std::thread::hardware_concurrency());
  if (threads < 1) {
    fprintf(stderr, "machine: THREADS should be at least 1\n");
    return 1;
  }
  printf("%d threads\n", threads);
  read_bandwidth(threads);
#ifdef __AVX512F__
  const __m512 x = _mm512_set1_ps(1e-8f);
  peak("float32", threads, 32, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_fmadd_ps(x, x, sum); });
#ifdef __AVX512BF16__
  const __m512bh h = _mm512_cvtne2ps_pbh(x, x);
  peak("bfloat16", threads, 64, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_dpbf16_ps(sum, h, h); });
#endif
#ifdef __AVX512VNNI__
  const __m512i b = _mm512_set1_epi8(1);
  peak("int8", threads, 128, _mm512_setzero_si512(), [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, b, b); });
#endif
#else
  printf("peaks: only measured with AVX-512\n");
#endif
}
