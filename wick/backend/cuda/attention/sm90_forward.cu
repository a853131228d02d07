// Attention's forward pass on 9.0 by wgmma. kRanged: for language models, with shared heads and ranges of keys.
#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/sm90.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kKeyTile = 128;

// How a block is made up: warpgroups that multiply, and what their threads keep of the 64 Ki registers. Three fit where
// sums are 64 wide, and share each tile of keys; ranges need more registers than that leaves.
template <int kWidth, bool kRanged_>
struct Form {
  static constexpr int kD = kWidth;
  static constexpr bool kRanged = kRanged_;
  static constexpr int kConsumers = kD == 64 && !kRanged ? 3 : 2;
  static constexpr int kOwn = 64 * kConsumers, kThreads = 128 * (1 + kConsumers), kWarps = 4 * kConsumers;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40, kRegisters = kConsumers == 3 ? 160 : 232;
};

struct Maps {
  CUtensorMap q, k, v;
};

template <class T>
struct Forward : AttentionForward<T> {
  bool constant;  // the ranges
  bool apart;  // with ranges, a block's two warpgroups take rows far apart: where each has one part, they end together
};

// Tiles lie 64 features after 64, for queries and values in 64 tokens and then in the next 64.
template <class T, class F>
struct Shared {
  static constexpr int kD = F::kD;
  static constexpr int kOwnTiles = 2;  // the next one comes while this one is worked on
  static constexpr int kTiles = kD == 64 ? 4 : 2;
  T own[kOwnTiles][F::kOwn * kD];
  T keys[kTiles][kKeyTile * kD], values[kTiles][kKeyTile * kD];
  uint64_t own_full[kOwnTiles], own_empty[kOwnTiles];
  uint64_t keys_full[kTiles], keys_empty[kTiles], values_full[kTiles], values_empty[kTiles];
};

#ifdef WICK_SM90A

constexpr int kTurn = 4;  // and on: barriers of the warpgroups' turns

template <class T, class F>
struct Rings {
  RingPlace<Shared<T, F>::kOwnTiles> own;
  RingPlace<Shared<T, F>::kTiles> keys, values;
};

struct Part {
  int head, begin;  // of keys
  int walked;       // tiles of keys, of which a warpgroup
  int tiles;        // sees the first ones
  int first;        // of its 64 rows
};
// The first of a warpgroup's 64 rows. The longest parts come first.
template <class F, class T>
__device__ __forceinline__ int first_row(const Forward<T>& a, int index, int consumer) {
  const int blocks = ceil_div(a.shape.queries, F::kOwn), block = index / a.shape.all_heads;
  if (F::kRanged && a.apart) return (consumer == 0 ? 2 * blocks - 1 - block : block) * 64;
  return (blocks - 1 - block) * F::kOwn + consumer * 64;
}
template <class F, class T>
__device__ __forceinline__ Part part_of(const Forward<T>& a, int index, int consumer) {
  const AttentionProblem& s = a.shape;
  const int head = index % s.all_heads, entry = head / s.heads;
  const auto row = [&](int of) { return first_row<F>(a, index, of); };
  const int begin = F::kRanged ? s.seen(entry, min(row(0), row(1))).x : 0;
  const auto tiles = [&](int first) {
    const int end = F::kRanged ? s.seen(entry, first + 63).y : s.causal ? min(s.keys, first + 64) : s.keys;
    return ceil_div(max(end - begin, 0), kKeyTile);
  };
  int walked = 0;
#pragma unroll
  for (int i = 0; i < F::kConsumers; ++i) walked = max(walked, tiles(row(i)));
  return {head, begin, walked, tiles(row(consumer)), row(consumer)};
}

template <class T, class F>
__device__ __forceinline__ void produce(Shared<T, F>& shared, const Maps& maps, const Forward<T>& a, int index,
                                        Rings<T, F>& rings) {
  constexpr int kD = F::kD;
  const Part part = part_of<F>(a, index, 0);
  const int head = part.head % a.shape.heads, batch = part.head / a.shape.heads;
  const int key_head = F::kRanged ? head / a.shape.shared : head;
  const auto room = [](uint64_t* full, uint64_t* empty, const auto& ring, const auto& tiles) {
    barrier_wait(&empty[ring.stage], ring.phase ^ 1);
    barrier_expect(&full[ring.stage], int(sizeof tiles[0]));
    return &full[ring.stage];
  };
  wait_for_previous();
  uint64_t* const full = room(shared.own_full, shared.own_empty, rings.own, shared.own);
  for (int i = 0; i < F::kConsumers; ++i)
    load_tokens<kD, 64>(shared.own[rings.own.stage] + i * 64 * kD, maps.q, full, first_row<F>(a, index, i), head,
                        batch);
  rings.own.advance();
  for (int tile = 0; tile < part.walked; ++tile) {
    const int first = part.begin + tile * kKeyTile;
    uint64_t* const keys_full = room(shared.keys_full, shared.keys_empty, rings.keys, shared.keys);
    load_tokens<kD, kKeyTile>(shared.keys[rings.keys.stage], maps.k, keys_full, first, key_head, batch);
    rings.keys.advance();
    uint64_t* const values_full = room(shared.values_full, shared.values_empty, rings.values, shared.values);
    for (int i = 0; i < kKeyTile; i += 64)
      load_tokens<kD, 64>(shared.values[rings.values.stage] + i * kD, maps.v, values_full, first + i, key_head, batch);
    rings.values.advance();
  }
}

// With ranges, which keys a warp's rows see.
template <bool kRanged>
struct Sight {
  int2 first, last;  // the ranges of the first row and of the last
  RowLimits limits;  // of this lane's rows
  int reach;         // keys from here on are not seen by any query

  __device__ __forceinline__ Sight(const AttentionProblem& s, int entry, int row, int lane) : reach(s.keys) {
    if constexpr (kRanged) {
      first = s.seen(entry, row);
      last = s.seen(entry, row + 15);
      limits = {{s.seen(entry, row + lane / 4), s.seen(entry, row + lane / 4 + 8)}};
      reach = s.seen(entry, s.queries - 1).y;
    }
  }
};

// One block's part, 64 rows of it. The warpgroups take turns to start products: while one takes the exponentials of a
// tile, the tensor cores add the tile before to its sums and work for the other.
template <class T, class F>
__device__ __forceinline__ void consume(Shared<T, F>& shared, const Forward<T>& a, int index, Rings<T, F>& rings) {
  constexpr int kD = F::kD, kN = kKeyTile;
  constexpr bool kRanged = F::kRanged;
  const AttentionProblem& s = a.shape;
  const int consumer = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) % 128 / 32, lane = int(threadIdx.x) % 32;
  const Part part = part_of<F>(a, index, consumer);
  const int row = part.first + warp * 16;
  T* const queries = shared.own[rings.own.stage] + consumer * 64 * kD;

  const Sight<kRanged> sight(s, part.head / s.heads, row, lane);
  float sum[kD / 8][4] = {}, scores[kN / 8][4], shrink[2] = {1, 1};
  uint32_t weights[kN / 16][4];
  RowSum rows[2];
  const auto keys_arrived = [&] { barrier_wait(&shared.keys_full[rings.keys.stage], rings.keys.phase); };
  const auto values_arrived = [&] { barrier_wait(&shared.values_full[rings.values.stage], rings.values.phase); };
  const auto release = [&](uint64_t* empty, auto& ring) {
    if (lane == 0) barrier_arrive(&empty[ring.stage]);
    ring.advance();
  };
  const auto own_turn = [&] { named_barrier(kTurn + consumer, 256); };
  const auto next_turn = [&] { named_barrier_arrive(kTurn + (consumer + 1) % F::kConsumers, 256); };
  const auto start_scores = [&] {
    wgmma_fence();
    multiply_rows<T, kD>(scores, uniform(wgmma_operand<true>(queries)), 64 * 128,
                         uniform(wgmma_operand<true>(shared.keys[rings.keys.stage])), kN * 128);
  };
  const auto start_sums = [&] {
    // Most tiles leave each row's peak where it is. (With ranges this has not been timed.)
    if (kRanged || __any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) rescale(sum, shrink);
    add_product<T>(sum, weights, uniform(wgmma_operand<false>(shared.values[rings.values.stage])));
  };
  const auto take_exponentials = [&](int tile) {
    wgmma_arrived(scores);
    release(shared.keys_empty, rings.keys);
    const int start = part.begin + tile * kN;
    const Place place{row + lane / 4, start + lane % 4 * 2};
    if (kRanged && !sees_all(sight.first, sight.last, start, kN)) hide<false>(scores, sight.limits, place, -INFINITY);
    exponentials<kRanged>(scores, rows, shrink, s.scale * kLog2E, s, place,
                          !kRanged && masked<false>(s, row, 16, start, kN));
    wgmma_arrived(scores);
    // Here, since ptxas takes the exponentials after the wait for the sums unless there is a branch between.
    if (tile + 1 < part.tiles) keys_arrived();
  };
  const auto finish_sums = [&] {
    wgmma_wait<0>();
    wgmma_arrived(sum);
    release(shared.values_empty, rings.values);
  };

  barrier_wait(&shared.own_full[rings.own.stage], rings.own.phase);
  if (!kRanged || part.tiles > 0) {
    keys_arrived();
    own_turn();
    start_scores();
    next_turn();
    wgmma_wait<0>();
    take_exponentials(0);
    pack_rows<T>(weights, scores);
    for (int tile = 1; tile < part.tiles; ++tile) {
      own_turn();
      start_scores();
      values_arrived();
      start_sums();
      next_turn();
      wgmma_wait<1>();
      take_exponentials(tile);
      finish_sums();
      pack_rows<T>(weights, scores);
    }
    values_arrived();
    const int left = sight.reach - part.begin - (part.tiles - 1) * kN;
    if (kRanged && left < kN) {
      const bool both = part_of<F>(a, index, 1 - consumer).tiles == part.tiles;
      clear_rows<kD, kN>(shared.values[rings.values.stage], left, both);
    }
    start_sums();
    finish_sums();
  }
  for (int tile = part.tiles; tile < part.walked; ++tile) {  // seen by the other warpgroup alone
    own_turn();
    next_turn();
    keys_arrived();
    release(shared.keys_empty, rings.keys);
    values_arrived();
    release(shared.values_empty, rings.values);
  }
  named_barrier(1 + consumer, 128);  // all four warps are done with their queries, which become room to store
  float inverse[2];
  finish_rows(inverse, rows, a.lse + int64_t(part.head) * s.queries, row, s, lane);
  store_warp_rows<T, kD>(queries + warp * 16 * kD, sum, inverse[0], inverse[1], a.y.at(part.head, s.heads), a.y.token,
                         row, s.queries, s.features, lane);
  fence_async();  // before TMA writes there again
  __syncwarp();
  if (lane == 0) barrier_arrive(&shared.own_empty[rings.own.stage]);
  rings.own.advance();
}

#endif  // WICK_SM90A

template <class T, class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    forward_by_wgmma(const __grid_constant__ Maps maps, const __grid_constant__ Forward<T> a, int parts) {
#ifdef WICK_SM90A
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<T, F>*>(first_tile(memory));
  launch_dependents();
  if (threadIdx.x == 0) {
    init_ring(shared.own_full, shared.own_empty, 1, F::kWarps);
    init_ring(shared.keys_full, shared.keys_empty, 1, F::kWarps);
    init_ring(shared.values_full, shared.values_empty, 1, F::kWarps);
    barrier_init_done();
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v}) tma_prefetch(*map);
  }
  __syncthreads();
  if (!a.constant) wait_for_previous();
  Rings<T, F> rings;
  if (threadIdx.x < 128) {
    registers_shrink<F::kProducerRegisters>();
    if (threadIdx.x == 0)
      for (int round = 0, part; (part = part_at(round)) < parts; ++round) produce<T, F>(shared, maps, a, part, rings);
  } else {
    registers_grow<F::kRegisters>();
    if (int(threadIdx.x) >= 128 * F::kConsumers) named_barrier_arrive(kTurn, 256);  // the last one lets the first begin
    for (int round = 0, part; (part = part_at(round)) < parts; ++round) consume<T, F>(shared, a, part, rings);
  }
#endif
}

}  // namespace

void attention_by_wgmma(CudaBackend& cuda, const AttentionArgs& a) {
  dispatch_attention(a, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>, auto ranged) {
    const AttentionForward<T> forward(a);
    const AttentionProblem& s = forward.shape;
    using F = Form<kD, ranged>;
    const int parts = s.entries * s.heads * ceil_div(s.queries, F::kOwn), room = cuda.multiprocessors();
    const bool constant = !a.ranges || a.ranges.constant, apart = parts <= room;
    launch("attention", cuda.stream(),
           {unsigned(std::min(parts, room)), F::kThreads, sizeof(Shared<T, F>) + 1024, 1, true}, forward_by_wgmma<T, F>,
           Maps{heads_map(a.q), heads_map(a.k), heads_map(a.v)}, Forward<T>{forward, constant, apart}, parts);
  });
}

}  // namespace wick
