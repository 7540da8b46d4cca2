/* daemon/api/ranks.h - what /metrics and the devices say of ranks. Any thread. */
#ifndef API_RANKS_H
#define API_RANKS_H

struct buf;
struct rank_view;
struct router;

/* llmrack_rank_* and llmrack_comm_*, as Prometheus text. */
void ranks_metrics(struct router *r, struct buf *out);
/* Its coordinates in the dimensions that it shares with others: "pp0 tp2", "" alone. */
void ranks_at(const struct rank_view *v, char ret[64]);

#endif
