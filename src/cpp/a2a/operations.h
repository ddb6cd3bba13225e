// The table of operations: X(name, number, text, compared) for each.
#pragma once

// The number is what ranks compare: it stays, and a new operation gets the next one. The text stands in errors, records
// and timelines. What two ranks compare, beside the operation, the memory, the dtype and the plan:
//   pair          the sizes of what they send each other
//   all           the sizes of all ranks' parts, which every rank passes
//   all_and_root  the same, and the root
//   elements      the number of elements
//   experts       as pair, and the rows for each expert
//   scales        as pair, and the dtype of scales and the bytes of a row
//   shardings     the shapes and the shardings of all tensors, and of several tensors the dtypes
//   weights       as pair, and whether rows are multiplied by weights
#define A2A_OPERATIONS(X)                                                                           \
  X(alltoallv, 1, "alltoallv", pair)                                                                \
  X(alltoall, 2, "alltoall", pair)                                                                  \
  X(alltoall_list, 3, "alltoall_list", pair)                                                        \
  X(allgather, 4, "allgather", all)                                                                 \
  X(global_scatter, 5, "global_scatter", experts)                                                   \
  X(global_gather, 6, "global_gather", experts)                                                     \
  X(exchange, 7, "exchange", pair)                                                                  \
  X(barrier, 8, "barrier", pair)                                                                    \
  X(split, 9, "split", pair)                                                                        \
  X(group, 10, "group", pair)                                                                       \
  X(shrink, 11, "shrink", pair)                                                                     \
  X(plan, 12, "plan", pair)                                                                         \
  X(close, 13, "close", pair)                                                                       \
  X(connect, 14, "connect", pair) /* making a device communicator */                                \
  X(allgather_views, 15, "allgather_views", pair)                                                   \
  X(allgather_bytes, 16, "allgather_bytes", pair)                                                   \
  X(exchange_counts, 17, "exchange", pair) /* the first half of exchange() */                       \
  X(allreduce, 18, "allreduce", elements)                                                           \
  X(reduce_scatter, 19, "reduce_scatter", all)                                                      \
  X(reduce, 20, "reduce", all_and_root)                                                             \
  X(broadcast, 21, "broadcast", all_and_root)                                                       \
  X(gather, 22, "gather", pair)                                                                     \
  X(scatter, 23, "scatter", pair)                                                                   \
  X(allgatherv, 24, "allgatherv", all)                                                              \
  X(send, 25, "send", pair)                                                                         \
  X(recv, 26, "recv", pair)                                                                         \
  X(route, 27, "dispatch", pair) /* the exchange of routes, the first half of dispatch() */         \
  X(dispatch, 28, "dispatch", scales)                                                               \
  X(combine, 29, "combine", weights)                                                                \
  X(give_back, 30, "give_back", pair) /* the values of rows go back to the ranks of their tokens */ \
  X(scan, 31, "scan", elements)                                                                     \
  X(exscan, 32, "exscan", elements)                                                                 \
  X(reshard, 33, "reshard", shardings)
