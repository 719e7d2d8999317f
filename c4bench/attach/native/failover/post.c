/* What programs post is kept before a device gets it. At the program's own NIC the device gets the kept requests as they are; at
   its twin, copies with the twin's keys. */
#include "fence.h"
#include "keeper.h"
#include "memory.h"
#include "pairs.h"
#include "request_id.h"
#include "../say.h"
#include "../time.h"

#include <errno.h>

/* How many packets a request takes, and so how many packet sequence numbers (InfiniBand specification, volume 1, 9.7.2). */
static uint32_t packets_of(const struct pair *pair, uint64_t bytes)
{
	return bytes ? (uint32_t)((bytes + pair->bytes_a_packet - 1) / pair->bytes_a_packet) : 1;
}

static void number(struct pair *pair, uint64_t number, struct sent_request *request, struct ibv_send_wr *wr)
{
	uint32_t packets = request->executed ? 1 : packets_of(pair, sent_bytes(request));

	wr->wr_id = id_of(0, pair->send_epoch, number);
	request->packets_end = pair->packets[pair->send_side] += packets;
}

/* The requests that the device does not take have not been posted. */
static int refuse_sends(struct pair *pair, const struct ibv_send_wr *bad, int failed)
{
	struct sends *sends = &pair->sends;
	uint64_t refused = sends->at.given;

	while (&sends_at(sends, refused)->wr != bad)
		refused++;
	pair->packets[OWN] = refused > sends->at.given ? sends_at(sends, refused - 1)->packets_end
						       : sends_at(sends, refused)->packets_end -
								 packets_of(pair, sent_bytes(sends_at(sends, refused)));
	sends->at.given = sends->at.head = refused;
	return failed;
}

static int give_own(struct pair *pair)
{
	struct sends *sends = &pair->sends;
	struct sent_request *last = NULL, *first = sends_at(sends, sends->at.given);
	struct ibv_send_wr *bad = NULL;

	for (uint64_t i = sends->at.given; i < sends->at.head; i++) {
		struct sent_request *request = sends_at(sends, i);
		number(pair, i, request, &request->wr);
		if (last)
			last->wr.next = &request->wr;
		request->wr.next = NULL;
		last = request;
	}
	int failed = pair->nic->of[OWN].post_send(pair->qp[OWN], &first->wr, &bad);
	if (failed)
		return refuse_sends(pair, bad, failed);
	sends->at.given = sends->at.head;
	return 0;
}

static int parts_at(const struct nic *nic, int side, const struct ibv_sge *parts, int count, struct ibv_sge *there)
{
	for (int i = 0; i < count; i++) {
		there[i] = parts[i];
		if (side == TWIN && parts[i].length && !memory_local_key(nic, parts[i].lkey, &there[i].lkey))
			return 0;
	}
	return 1;
}

static void make_empty(struct ibv_send_wr *wr)
{
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->send_flags &= IBV_SEND_SIGNALED;
	wr->num_sge = 0;
	wr->wr.rdma.remote_addr = wr->wr.rdma.rkey = 0;
}

static int has_foreign_key(const struct sent_request *request)
{
	return request->wr.opcode != IBV_WR_SEND && request->wr.opcode != IBV_WR_SEND_WITH_IMM && sent_bytes(request);
}

/* Make of a request what the device of the present side gets. Returns 0 where a key has no twin: the peer's is asked for. */
static int prepare(struct pair *pair, const struct sent_request *request, struct ibv_send_wr *wr, struct ibv_sge *parts)
{
	*wr = request->wr;
	wr->next = NULL;
	if (request->executed) {
		make_empty(wr);
		return 1;
	}
	wr->sg_list = parts;
	if (wr->send_flags & IBV_SEND_INLINE) {
		parts[0] = request->wr.sg_list[0];
	} else if (wr->num_sge > PARTS_AT_MOST ||
		   !parts_at(pair->nic, pair->send_side, request->wr.sg_list, wr->num_sge, parts)) {
		keeper_give_up(pair);
		return 0;
	}
	if (pair->send_side == OWN || !has_foreign_key(request) ||
	    fence_foreign_key(pair, wr->wr.rdma.rkey, &wr->wr.rdma.rkey))
		return 1;
	pair->missing_key = wr->wr.rdma.rkey;
	pair->holding = 1;
	keeper_wake();
	return 0;
}

/* One by one, and not as they are. */
static void give_prepared(struct pair *pair)
{
	struct sends *sends = &pair->sends;
	struct ibv_sge parts[PARTS_AT_MOST];
	struct ibv_send_wr wr, *bad;
	int side = pair->send_side;

	for (; sends->at.given < sends->at.head; sends->at.given++) {
		struct sent_request *request = sends_at(sends, sends->at.given);
		if (!prepare(pair, request, &wr, parts))
			return;
		number(pair, sends->at.given, request, &wr);
		if (pair->nic->of[side].post_send(pair->qp[side], &wr, &bad)) {
			keeper_give_up(pair);
			return;
		}
	}
}

int pair_give_sends(struct pair *pair)
{
	if (pair->sends.at.given == pair->sends.at.head)
		return 0;
	if (pair->send_side == OWN && pair->sends.at.given >= pair->mixed_until)
		return give_own(pair);
	give_prepared(pair);
	return 0;
}

int pair_probe(struct pair *pair, int side)
{
	struct ibv_send_wr wr = {.wr_id = id_of(0, pair->probes, ID_PROBE), .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;

	pair->packets[side]++;
	pair->probe = PROBING;
	return pair->nic->of[side].post_send(pair->qp[side], &wr, &bad);
}

static int give_receive(struct pair *pair, uint64_t number)
{
	const struct received_request *request = receives_at(&pair->receives, number);
	struct ibv_sge parts[PARTS_AT_MOST];
	struct ibv_recv_wr wr = request->wr, *bad;
	int side = pair->receive_side;

	wr.wr_id = id_of(1, pair->receive_epoch, number);
	if (side == TWIN) {
		if (wr.num_sge > PARTS_AT_MOST || !parts_at(pair->nic, side, wr.sg_list, wr.num_sge, parts))
			return EINVAL;
		wr.sg_list = parts;
	}
	return pair->nic->of[side].post_recv(pair->qp[side], &wr, &bad);
}

int pair_give_receives(struct pair *pair)
{
	struct numbers *at = &pair->receives.at;

	for (; at->given < at->head; at->given++) {
		int failed = give_receive(pair, at->given);
		if (failed)
			return failed;
	}
	return 0;
}

/* Atomics, windows and invalidations cannot be repeated elsewhere: a pair that has them does not move any more. */
static int may_post(struct pair *pair, const struct ibv_send_wr *request)
{
	enum state young = YOUNG, ready = READY;

	if (is_repeatable(request) || pair->state == PLAIN)
		return 1;
	say("a queue pair has atomics or invalidations: it does not go on at another NIC");
	return pair->send_side == OWN && (atomic_compare_exchange_strong(&pair->state, &ready, PLAIN) ||
					  atomic_compare_exchange_strong(&pair->state, &young, PLAIN));
}

/* The n-th of a list. */
static struct ibv_send_wr *nth(struct ibv_send_wr *first, uint64_t n)
{
	while (n--)
		first = first->next;
	return first;
}

static int post(struct pair *pair, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct sends *sends = &pair->sends;
	uint64_t before = sends->at.head;
	struct ibv_send_wr *request = first;
	int failed = 0;

	for (; request && !failed; request = request->next) {
		failed = !may_post(pair, request) ? EOPNOTSUPP : !sends_add(sends, request) ? ENOMEM : 0;
		if (failed)
			*bad = request;
	}
	enum state state = pair->state;
	if (state == LOST) {
		pair_fail(pair);
	} else if (state != MOVING && !pair->holding) {
		int refused = pair_give_sends(pair);
		if (refused) {
			*bad = nth(first, sends->at.head - before);
			failed = refused;
		}
	}
	return failed;
}

/* Why not all of a list can be kept; 0 where they can. */
static int obstacle(struct pair *pair, const struct ibv_send_wr *request)
{
	const struct sends *sends = &pair->sends;
	uint64_t room = sends->most - (sends->at.head - *(volatile uint64_t *)&sends->at.done);

	for (; request; request = request->next, room--) {
		if (!may_post(pair, request))
			return EOPNOTSUPP;
		if (!room || request->num_sge > (int)sends->most_parts)
			return ENOMEM;
	}
	return 0;
}

int pair_post_all(struct pair *pair, struct ibv_send_wr *first)
{
	struct ibv_send_wr *bad;

	progressed();
	int owned = bias_enter(&pair->posting);
	int failed = obstacle(pair, first);
	failed = failed ? failed : post(pair, first, &bad);
	bias_leave(&pair->posting, owned);
	return failed;
}

int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct pair *pair = pair_of(qp);

	if (!pair)
		return nic_of(qp->context)->of[OWN].post_send(qp, first, bad);
	progressed();
	int owned = bias_enter(&pair->posting);
	int failed = post(pair, first, bad);
	bias_leave(&pair->posting, owned);
	return failed;
}

static int post_receives(struct pair *pair, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
	struct receives *receives = &pair->receives;
	int failed = 0;

	for (; first && !failed; first = first->next) {
		failed = receives_add(receives, first) ? 0 : ENOMEM;
		if (!failed && pair->state != LOST && !pair->receives_wait && (failed = pair_give_receives(pair)))
			receives->at.head = receives->at.given;
		if (failed)
			*bad = first;
	}
	if (pair->state == LOST)
		pair_fail(pair);
	return failed;
}

int pair_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
	struct pair *pair = pair_of(qp);

	if (!pair)
		return nic_of(qp->context)->of[OWN].post_recv(qp, first, bad);
	int owned = bias_enter(&pair->receiving);
	int failed = post_receives(pair, first, bad);
	bias_leave(&pair->receiving, owned);
	return failed;
}
