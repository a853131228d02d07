// Attention's backward pass on 9.0 by wgmma. kRanged: for language models, with shared heads and ranges of keys.
#include "wick/backend/cuda/attention/backward.cuh"
#include "wick/backend/cuda/attention/sm90.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kOwn = 64 * kConsumers, kThreads = 128 * (1 + kConsumers);
constexpr int kWarps = 4 * kConsumers;  // that consume
constexpr int kStages = 4;

// Tokens of the other side at a time, as many as the registers hold beside the sums; and whether they also hold the
// scores of the tile that comes next, which the tensor cores then make while the exponentials of this one are taken.
template <bool kKeys, int kD>
constexpr int kOther = 64;
template <int kD>
constexpr int kRounds = kD == 64 ? 1 << 30 : 1;  // parts of a block: wide heads leave no registers to count them
template <bool kKeys, int kD>
constexpr bool kAhead = !kKeys || kD == 64;

struct Maps {
  CUtensorMap q, k, v, dy;  // boxes of kHeadsBox tokens
};

// Tiles lie 64 features after 64.
template <class T, int kD>
struct Shared {
  static constexpr int kOwnTiles = kD == 64 ? 2 : 1;  // the next one comes while this one is worked on
  static constexpr int kOthers = kOther<false, kD>;
  T own[kOwnTiles][2][kOwn * kD];
  T other[kStages][2][kOthers * kD];
  float lse[kStages][kOthers], delta[kStages][kOthers];
  int2 seen[kStages][kOthers];  // with ranges, by queries of the other side,
  int first[kStages];           // of which this is the first
  uint64_t own_full[kOwnTiles], own_empty[kOwnTiles], full[kStages], empty[kStages];
};

#ifdef WICK_SM90A

// A warp's 16 x kD elements of the 64 rows that its warpgroup owns, once they have been read.
template <int kD, class T>
__device__ __forceinline__ T* staging_of(T* own, int consumer, int warp) {
  const int at = warp * 16 * kD;
  return own + at / (64 * 64) * kOwn * 64 + consumer * 64 * 64 + at % (64 * 64);
}

template <class T, int kD>
struct Rings {
  RingPlace<Shared<T, kD>::kOwnTiles> own;
  RingPlace<kStages> other;
};

template <bool kKeys, bool kRanged, class T, int kD>
__device__ __forceinline__ void produce(Shared<T, kD>& shared, const Maps& maps, const AttentionBackward<T>& a,
                                        int index, Rings<T, kD>& rings) {
  constexpr int kN = kOther<kKeys, kD>;
  const auto& s = a.shape;
  const BackwardWalk w = walk_of<kKeys, kRanged>(a, index, kOwn, kN);
  const CUtensorMap &own = kKeys ? maps.k : maps.q, &own_partner = kKeys ? maps.v : maps.dy;
  const CUtensorMap &other = kKeys ? maps.q : maps.k, &other_partner = kKeys ? maps.dy : maps.v;
  const int lane = int(threadIdx.x), own_heads = kKeys && kRanged ? s.key_heads : s.heads;
  const int other_heads = !kKeys && kRanged ? s.key_heads : s.heads;
  barrier_wait(&shared.own_empty[rings.own.stage], rings.own.phase ^ 1);
  if (lane == 0) {
    auto& tiles = shared.own[rings.own.stage];
    uint64_t* const full = &shared.own_full[rings.own.stage];
    const int head = w.own_head % own_heads, entry = w.own_head / own_heads;
    barrier_expect(full, int(sizeof tiles));
    load_tokens<kD, kOwn>(tiles[0], own, full, w.own_tile * kOwn, head, entry);
    load_tokens<kD, kOwn>(tiles[1], own_partner, full, w.own_tile * kOwn, head, entry);
  }
  rings.own.advance();
  for (int step = w.begin; step < w.end; ++step) {
    const int all_head = w.head_at<kKeys, kRanged>(step), token = w.token_at<kKeys, kRanged>(step, kN);
    const int stage = rings.other.stage;
    barrier_wait(&shared.empty[stage], rings.other.phase ^ 1);
    uint64_t* const full = &shared.full[stage];
    if (lane == 0) {
      auto& tiles = shared.other[stage];
      const int head = all_head % other_heads, entry = all_head / other_heads;
      barrier_expect(full, 2 * kN * kD * int(sizeof(T)));
      load_tokens<kD, kN>(tiles[0], other, full, token, head, entry);
      load_tokens<kD, kN>(tiles[1], other_partner, full, token, head, entry);
    }
    if (kKeys) {
      if (step == w.begin) wait_for_previous();
      for (int i = lane; i < kN; i += 32) {
        const int query = token + i;
        const bool there = query < s.queries;
        const int64_t at = int64_t(all_head) * s.queries + query;
        shared.lse[stage][i] = saved_lse(a.lse, at, there);
        shared.delta[stage][i] = there ? a.delta[at] : 0;
        if constexpr (kRanged) shared.seen[stage][i] = s.seen(w.entry, query);
      }
      if (kRanged && lane == 0) shared.first[stage] = token;
    }
    barrier_arrive(full);
    rings.other.advance();
  }
}

// A lane's data about its rows, there before the first tile: statistics, and the ranges of queries if there are ranges.
template <bool kKeys, bool kRanged>
struct OwnRows {
  RowStatistics statistics;
  int2 first_seen, last_seen;  // by this warp's queries
  RowLimits limits;
  int reach;  // keys from here on are not seen by any query

  template <class T>
  __device__ __forceinline__ OwnRows(const AttentionBackward<T>& a, const BackwardWalk& w, int row, int lane) {
    const AttentionProblem& s = a.shape;
    if constexpr (!kKeys) statistics = row_statistics(a, w.own_head, row + lane / 4);
    if constexpr (kRanged && !kKeys) {
      first_seen = s.seen(w.entry, row);
      last_seen = s.seen(w.entry, row + 15);
      limits = {{s.seen(w.entry, row + lane / 4), s.seen(w.entry, row + lane / 4 + 8)}};
      reach = s.seen(w.entry, s.queries - 1).y;
    }
  }
};

// The first token of a tile of the other side, and whether some scores are hidden: by the shape, or by ranges.
struct TileSight {
  int token;
  bool mask = false, hidden = false;
};
template <bool kKeys, bool kRanged, class T, int kD>
__device__ __forceinline__ TileSight sight_of(Shared<T, kD>& shared, const AttentionProblem& s, const BackwardWalk& w,
                                              const OwnRows<kKeys, kRanged>& own, int step, int stage, int row) {
  constexpr int kN = kOther<kKeys, kD>;
  TileSight tile{step * kN};
  if constexpr (!kRanged) {
    tile.mask = masked<kKeys>(s, row, 16, tile.token, kN);
  } else if constexpr (kKeys) {
    tile.token = shared.first[stage];
    tile.hidden = !sees_all(shared.seen[stage][0], shared.seen[stage][kN - 1], row, 16);
  } else {
    tile.token += w.origin;
    tile.hidden = !sees_all(own.first_seen, own.last_seen, tile.token, kN);
    if (tile.token + kN > own.reach) clear_rows<kD, kN>(shared.other[stage][0], own.reach - tile.token);
  }
  return tile;
}

// One block's part, 64 rows of it. With kAhead products of four kinds are under way at a time and end in this order:
// dp, the next scores, and the two that add to the sums.
template <bool kKeys, bool kRanged, class T, int kD>
__device__ __forceinline__ void consume(Shared<T, kD>& shared, const AttentionBackward<T>& a, int index,
                                        Rings<T, kD>& rings) {
  constexpr int kN = kOther<kKeys, kD>, kAdding = kKeys ? 2 : 1;
  constexpr bool kLooks = kAhead<kKeys, kD>;
  const auto& s = a.shape;
  const BackwardWalk w = walk_of<kKeys, kRanged>(a, index, kOwn, kN);
  const int consumer = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) % 128 / 32, lane = int(threadIdx.x) % 32;
  const int row = w.own_tile * kOwn + consumer * 64 + warp * 16;
  auto& tiles = shared.own[rings.own.stage];
  const uint64_t own = wgmma_operand<true>(tiles[0] + consumer * 64 * 64),
                 own_partner = wgmma_operand<true>(tiles[1] + consumer * 64 * 64);
  const OwnRows<kKeys, kRanged> rows(a, w, row, lane);
  float grad[kD / 8][4] = {}, grad_partner[kD / 8][4] = {};
  float p[kN / 8][4], dp[kN / 8][4], next[kLooks ? kN / 8 : 8][4];
  RingPlace<kStages>& ring = rings.other;
  const auto arrived = [&] { barrier_wait(&shared.full[ring.stage], ring.phase); };
  const auto release = [&](int stage) { barrier_arrive(&shared.empty[stage]); };
  const auto scores = [&](auto& to) {
    wgmma_fence();
    multiply_rows<T, kD>(to, own, kOwn * 128, wgmma_operand<true>(shared.other[ring.stage][0]), kN * 128);
  };
  int before = 0;
  barrier_wait(&shared.own_full[rings.own.stage], rings.own.phase);
  if (kLooks && w.begin < w.end) {
    arrived();
    scores(p);
    wgmma_wait<0>();
    wgmma_arrived(p);
  }
  for (int step = w.begin; step < w.end; ++step) {
    const int stage = ring.stage;
    T* const x = shared.other[stage][0];
    const T* const x_partner = shared.other[stage][1];
    if constexpr (!kLooks) {
      arrived();
      scores(p);
    }
    const TileSight tile = sight_of<kKeys, kRanged>(shared, s, w, rows, step, stage, row);
    const Place place{row + lane / 4, tile.token + lane % 4 * 2};
    wgmma_fence();
    multiply_rows<T, kD>(dp, own_partner, kOwn * 128, wgmma_operand<true>(x_partner), kN * 128);
    ring.advance();
    const auto in_between = [&](const auto& statistics, const auto& limits) {
      if constexpr (!kLooks) {
        wgmma_wait<1>();
        wgmma_arrived(p);
      }
      probabilities<kKeys>(p, statistics, s.scale * kLog2E, s, place, tile.mask);
      if (tile.hidden) hide<kKeys>(p, limits, place, 0);
      if constexpr (kLooks) {
        wgmma_wait<1>();  // the sums of the tile before
        if (step > w.begin) release(before);
        if (step + 1 < w.end) arrived();
        scores(next);  // reads arbitrary data after the last tile: a branch around it would end the overlap
        if constexpr (kKeys) add_product<T>(grad_partner, p, wgmma_operand<false>(x_partner));
        wgmma_wait<kAdding>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_arrived(dp);
      score_gradients<kKeys, kRanged>(dp, p, statistics);
    };
    if constexpr (kKeys)
      in_between(ColumnStatistics{shared.lse[stage], shared.delta[stage], lane % 4 * 2},
                 ColumnLimits{shared.seen[stage], lane % 4 * 2});
    else
      in_between(rows.statistics, rows.limits);
    if constexpr (kKeys && !kLooks) add_product<T>(grad_partner, p, wgmma_operand<false>(x_partner));
    add_product<T>(grad, dp, wgmma_operand<false>(x));
    if constexpr (kLooks) {
      wgmma_wait<kAdding>();
      wgmma_arrived(next);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[j][i] = next[j][i];
    } else {
      wgmma_wait<0>();
      release(stage);
    }
    before = stage;
  }
  wgmma_wait<0>();
  wgmma_arrived(grad);
  wgmma_arrived(grad_partner);
  if (kLooks && w.begin < w.end) release(before);
  named_barrier(1 + consumer, 128);  // all four warps are done with their rows of the tile, which become room to store
  store_gradients<kKeys, T, kD>(a, w, staging_of<kD>(tiles[0], consumer, warp), grad, grad_partner, row, lane);
  fence_async();  // before TMA writes there again
  __syncwarp();
  if (lane == 0) barrier_arrive(&shared.own_empty[rings.own.stage]);
  rings.own.advance();
}

#endif  // WICK_SM90A

template <class T, int kD, bool kRanged>
__global__ void __launch_bounds__(kThreads, 1)
    backward_by_wgmma(const __grid_constant__ Maps maps, const __grid_constant__ AttentionBackward<T> a, int parts) {
#ifdef WICK_SM90A
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kD>*>(first_tile(memory));
  launch_dependents();
  if (threadIdx.x == 0) {
    init_ring(shared.own_full, shared.own_empty, 1, kWarps);
    // The producer's lanes, and once more the one that expects the tiles; each lane, when it has read its statistics.
    init_ring(shared.full, shared.empty, 33, 32 * kWarps);
    barrier_init_done();
  }
  __syncthreads();
  Rings<T, kD> rings;
  if (threadIdx.x < 128) {
    registers_shrink<kD == 64 ? 40 : 24>();
    if (threadIdx.x < 32)
      for (int round = 0, part; (part = part_at(round)) < parts && round < kRounds<kD>; ++round)
        part < a.key_blocks ? produce<true, kRanged>(shared, maps, a, part, rings)
                            : produce<false, kRanged>(shared, maps, a, part, rings);
  } else {
    registers_grow<kD == 64 ? 232 : 240>();
    wait_for_previous();
    for (int round = 0, part; (part = part_at(round)) < parts && round < kRounds<kD>; ++round)
      part < a.key_blocks ? consume<true, kRanged>(shared, a, part, rings)
                          : consume<false, kRanged>(shared, a, part, rings);
  }
#endif
}

}  // namespace

void attention_by_wgmma_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta) {
  const Maps maps{heads_map(a.q), heads_map(a.k), heads_map(a.v), heads_map(g.dy)};
  dispatch_attention(a, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>, auto ranged) {
    // With ranges twice the room: walks are as long as what sees their keys, and more and shorter ones end together.
    const int room = cuda.multiprocessors();
    const auto run = [&](const auto& call, int parts) {
      const unsigned blocks = unsigned(kRounds<kD> > 1 ? std::min(parts, room) : parts);
      launch("attention_backward", cuda.stream(), {blocks, kThreads, sizeof(Shared<T, kD>) + 1024, 1, true},
             backward_by_wgmma<T, kD, ranged>, maps, call, parts);
    };
    run_backward<T>(cuda, a, g, delta, kOwn, kOther<true, kD>, ranged ? 2 * room : room, run);
  });
}

}  // namespace wick
