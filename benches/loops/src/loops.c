/*
 * The loops of src/measure/ and src/transport/rdma/ as a C programmer would write them over libibverbs: the same
 * messages, signals, checks of statuses and readings of the clock. They are what the loops in Rust are compared with.
 */

#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>
#include <x86intrin.h>

#define BATCH 16
#define LIST 32
#define MOST_SLOTS 1024

/* Mirrored by `End` in c.rs. */
struct end {
	struct ibv_qp *qp;
	uint64_t local;
	uint64_t remote;
	uint32_t lkey;
	uint32_t rkey;
	uint64_t stride;
	uint64_t slots;
	uint64_t depth;
	uint64_t sent;
	uint64_t done;
	uint32_t size;
	uint32_t signal_every;
	uint32_t until_signal;
};

static void build(const struct end *e, enum ibv_wr_opcode opcode, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	memset(wr, 0, sizeof(*wr));
	sge->addr = e->local;
	sge->length = e->size;
	sge->lkey = e->lkey;
	wr->sg_list = sge;
	wr->num_sge = 1;
	wr->opcode = opcode;
	wr->wr.rdma.remote_addr = e->remote;
	wr->wr.rdma.rkey = e->rkey;
}

static inline int take_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int got;

	do
		got = ibv_poll_cq(cq, 1, wc);
	while (got == 0);
	return got < 0 || wc->status != IBV_WC_SUCCESS;
}

static inline int take_batch(struct ibv_cq *cq, struct ibv_wc *wcs)
{
	int got, i;

	do
		got = ibv_poll_cq(cq, BATCH, wcs);
	while (got == 0);
	for (i = 0; i < got; i++)
		if (wcs[i].status != IBV_WC_SUCCESS)
			return -1;
	return got;
}

static inline int post_signalled(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int failed;

	e->until_signal = e->signal_every;
	wr->wr_id = e->sent;
	wr->send_flags |= IBV_SEND_SIGNALED;
	failed = ibv_post_send(e->qp, wr, &bad);
	wr->send_flags &= ~IBV_SEND_SIGNALED;
	return failed;
}

/* Fills `block` with the ticks of one RDMA READ each; returns how many, or -1. */
int64_t c_read_latency(struct end *e, uint64_t *block, uint64_t count, uint64_t deadline)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint64_t i, from, to;

	build(e, IBV_WR_RDMA_READ, &wr, &sge);
	wr.send_flags = IBV_SEND_SIGNALED;
	for (i = 0; i < count; i++) {
		from = __rdtsc();
		e->sent++;
		if (ibv_post_send(e->qp, &wr, &bad))
			return -1;
		if (take_one(e->qp->send_cq, &wc))
			return -1;
		to = __rdtsc();
		block[i] = to - from;
		if (to >= deadline)
			return i + 1;
	}
	return count;
}

/* The same for messages that are answered by one of the same kind. */
static inline int64_t echo_latency(struct end *e, uint64_t *block, uint64_t count, uint64_t deadline,
				   enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_sge sge, landing;
	struct ibv_wc wc;
	uint64_t i, from, to;

	build(e, opcode, &wr, &sge);
	memset(&receive, 0, sizeof(receive));
	landing = sge;
	landing.addr += e->stride;
	receive.sg_list = &landing;
	receive.num_sge = 1;
	for (i = 0; i < count; i++) {
		from = __rdtsc();
		e->sent++;
		if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			wr.imm_data = __builtin_bswap32((uint32_t)e->sent);
		if (--e->until_signal == 0) {
			if (post_signalled(e, &wr))
				return -1;
		} else if (ibv_post_send(e->qp, &wr, &bad)) {
			return -1;
		}
		if (take_one(e->qp->recv_cq, &wc))
			return -1;
		to = __rdtsc();
		block[i] = to - from;
		if (ibv_post_recv(e->qp, &receive, &bad_receive))
			return -1;
		if (e->until_signal == e->signal_every) {
			struct ibv_wc sent;

			while (e->sent - e->done + e->signal_every > e->depth) {
				if (take_one(e->qp->send_cq, &sent))
					return -1;
				e->done = sent.wr_id;
			}
		}
		if (to >= deadline)
			return i + 1;
	}
	return count;
}

int64_t c_send_latency(struct end *e, uint64_t *block, uint64_t count, uint64_t deadline)
{
	return echo_latency(e, block, count, deadline, IBV_WR_SEND);
}

int64_t c_write_imm_latency(struct end *e, uint64_t *block, uint64_t count, uint64_t deadline)
{
	return echo_latency(e, block, count, deadline, IBV_WR_RDMA_WRITE_WITH_IMM);
}

static inline int64_t stream(struct end *e, uint64_t count, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wcs[BATCH];
	uint64_t end = e->sent + count, at = 0, room;
	int got;

	build(e, opcode, &wr, &sge);
	while (e->done < end) {
		room = e->depth - (e->sent - e->done);
		if (room > end - e->sent)
			room = end - e->sent;
		for (; room > 0; room--) {
			e->sent++;
			e->until_signal--;
			wr.wr.rdma.remote_addr = e->remote + at;
			sge.addr = e->local + at;
			at += e->stride;
			if (at == e->stride * e->slots)
				at = 0;
			if (e->until_signal == 0 || e->sent == end) {
				if (post_signalled(e, &wr))
					return -1;
			} else if (ibv_post_send(e->qp, &wr, &bad)) {
				return -1;
			}
		}
		got = take_batch(e->qp->send_cq, wcs);
		if (got < 0)
			return -1;
		e->done = wcs[got - 1].wr_id;
	}
	return count;
}

int64_t c_write_stream(struct end *e, uint64_t count)
{
	return stream(e, count, IBV_WR_RDMA_WRITE);
}

int64_t c_send_stream(struct end *e, uint64_t count)
{
	return stream(e, count, IBV_WR_SEND);
}

/* RDMA WRITEs in lists of `LIST`, linked once; `count` is a multiple of that, and so are slots and depth. */
int64_t c_write_lists(struct end *e, uint64_t count)
{
	static struct ibv_send_wr wrs[MOST_SLOTS];
	static struct ibv_sge sges[MOST_SLOTS];
	struct ibv_send_wr *bad, *last;
	struct ibv_wc wcs[BATCH];
	uint64_t end = e->sent + count, at = 0, slot, room;
	int got;

	if (e->slots > MOST_SLOTS || e->slots % LIST)
		return -1;
	for (slot = 0; slot < e->slots; slot++) {
		build(e, IBV_WR_RDMA_WRITE, &wrs[slot], &sges[slot]);
		sges[slot].addr += slot * e->stride;
		wrs[slot].wr.rdma.remote_addr += slot * e->stride;
		wrs[slot].next = slot % LIST == LIST - 1 ? NULL : &wrs[slot + 1];
	}
	while (e->done < end) {
		room = e->depth - (e->sent - e->done);
		if (room > end - e->sent)
			room = end - e->sent;
		for (; room >= LIST; room -= LIST) {
			e->sent += LIST;
			last = &wrs[at + LIST - 1];
			last->wr_id = e->sent;
			last->send_flags = IBV_SEND_SIGNALED;
			if (ibv_post_send(e->qp, &wrs[at], &bad))
				return -1;
			at += LIST;
			if (at == e->slots)
				at = 0;
		}
		got = take_batch(e->qp->send_cq, wcs);
		if (got < 0)
			return -1;
		e->done = wcs[got - 1].wr_id;
	}
	return count;
}

/* Takes at least `count` messages, and posts a receive for each, from a ring that is linked once. */
int64_t c_sink(struct end *e, uint64_t count)
{
	static struct ibv_recv_wr wrs[MOST_SLOTS];
	static struct ibv_sge sges[MOST_SLOTS];
	struct ibv_recv_wr *bad, *behind;
	struct ibv_wc wcs[BATCH];
	uint64_t taken = 0, at = 0, slot, last;
	int got, failed;

	if (e->slots > MOST_SLOTS || e->slots < BATCH)
		return -1;
	for (slot = 0; slot < e->slots; slot++) {
		sges[slot].addr = e->local + slot * e->stride;
		sges[slot].length = e->stride;
		sges[slot].lkey = e->lkey;
		memset(&wrs[slot], 0, sizeof(wrs[slot]));
		wrs[slot].sg_list = &sges[slot];
		wrs[slot].num_sge = 1;
		wrs[slot].next = &wrs[(slot + 1) % e->slots];
	}
	while (taken < count) {
		got = take_batch(e->qp->recv_cq, wcs);
		if (got < 0)
			return -1;
		last = at + got;
		if (last > e->slots)
			last -= e->slots;
		behind = wrs[last - 1].next;
		wrs[last - 1].next = NULL;
		failed = ibv_post_recv(e->qp, &wrs[at], &bad);
		wrs[last - 1].next = behind;
		if (failed)
			return -1;
		at = last == e->slots ? 0 : last;
		taken += got;
	}
	return taken;
}
