/* Completions of pairs. What a device shows names a request by its side's epoch and its number (post.c): what comes late from a
   side that was left is nobody's any more. */
#include "keeper.h"
#include "pairs.h"
#include "pools.h"
#include "request_id.h"

#include <string.h>

/* Errors by which a device says that it, or the way to the peer, has failed. Others are the program's own, or its peer's. */
static int is_of_network(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_WR_FLUSH_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_FATAL_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
	case IBV_WC_GENERAL_ERR:
		return 1;
	default:
		return 0;
	}
}

/* Whether an error stays here, at least until it is known whether the pair can move. */
static int is_withheld(struct pair *pair, const struct ibv_wc *completion)
{
	enum state state = pair->state, ready = READY, young = YOUNG;

	if (in_child || state == PLAIN || (state == YOUNG && !pair->hopes))
		return 0;
	if (state == MOVING || state == LOST || is_of_network(completion->status)) {
		if (pair->error == IBV_WC_SUCCESS && state != LOST) {
			pair->error = completion->status;
			pair->vendor_error = completion->vendor_err;
		}
		if (state != MOVING && state != LOST)
			keeper_want(pair);
		return 1;
	}
	return !atomic_compare_exchange_strong(&pair->state, &ready, PLAIN) &&
	       !atomic_compare_exchange_strong(&pair->state, &young, PLAIN);
}

/* The program's own names in place of ours. */
static void translate(const struct pair *pair, int side, struct ibv_wc *completion, uint64_t wr_id)
{
	completion->wr_id = wr_id;
	if (side == TWIN)
		completion->qp_num = pair->qp[OWN]->qp_num;
}

static int complete_send(struct pair *pair, int side, struct ibv_wc *completion)
{
	uint64_t number = id_number(completion->wr_id);
	const struct sent_request *request = sends_at(&pair->sends, number);

	if (number == ID_PROBE) {
		if (is_epoch(id_epoch(completion->wr_id), pair->probes))
			pair->probe = completion->status ? UNANSWERED : ANSWERED;
		keeper_wake();
		return 0;
	}
	if (!is_epoch(id_epoch(completion->wr_id), pair->send_epoch) || (completion->status && is_withheld(pair, completion)))
		return 0;
	if (pair->state == LOST)
		return 0;
	translate(pair, side, completion, request->wr_id);
	if (request->executed && !completion->status)
		completion->opcode = sent_opcode(request);
	pair->sends.at.done = number + 1;
	return 1;
}

static int complete_shared(struct pair *pair, int side, struct ibv_wc *completion)
{
	uint64_t wr_id;

	/* A message that had come in part: the receive is still to be used, by the other NIC. */
	if (completion->status && pool_is_present(pair->pool, id_epoch(completion->wr_id)) && is_withheld(pair, completion))
		return 0;
	if (pair->state == LOST || !pool_take(pair->pool, id_epoch(completion->wr_id), id_number(completion->wr_id), &wr_id))
		return 0;
	translate(pair, side, completion, wr_id);
	pair->receives.used += !completion->status;
	return 1;
}

static int complete_receive(struct pair *pair, int side, struct ibv_wc *completion)
{
	uint64_t number = id_number(completion->wr_id);
	struct receives *receives = &pair->receives;

	if (pair->pool)
		return complete_shared(pair, side, completion);
	if (!is_epoch(id_epoch(completion->wr_id), pair->receive_epoch))
		return 0;
	if (completion->status && is_withheld(pair, completion)) {
		receives->flushed = number + 1;
		return 0;
	}
	if (pair->state == LOST)
		return 0;
	translate(pair, side, completion, receives_at(receives, number)->wr_id);
	receives->used += !completion->status;
	receives->at.done = number + 1;
	return 1;
}

/* A queue pair without a twin: its receives may be of a pool, whose ids the device has. */
static int complete_other(const struct nic *nic, struct ibv_wc *completion)
{
	int received = completion->status ? id_received(completion->wr_id) : (completion->opcode & IBV_WC_RECV) != 0;
	struct pool *pool = received ? pool_of_other(nic, completion->qp_num) : NULL;

	if (pool)
		pool_take(pool, id_epoch(completion->wr_id), id_number(completion->wr_id), &completion->wr_id);
	return 1;
}

int pair_complete(const struct nic *nic, int side, struct ibv_wc *completion)
{
	struct pair *pair = keeper_numbered(nic, side, completion->qp_num);

	if (!pair)
		return side == OWN && complete_other(nic, completion);
	if (id_received(completion->wr_id))
		return complete_receive(pair, side, completion);
	return complete_send(pair, side, completion);
}

static void add_error(struct pair *pair, struct queue *queue, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc completion;

	memset(&completion, 0, sizeof completion);
	completion.wr_id = wr_id;
	completion.status = status;
	completion.vendor_err = pair->vendor_error;
	completion.qp_num = pair->qp[OWN]->qp_num;
	queue_add(queue, &completion);
}

/* The first send has the error itself, all others were flushed (InfiniBand specification, volume 1, 10.3.1.6). */
void pair_fail(struct pair *pair)
{
	struct numbers *sends = &pair->sends.at, *receives = &pair->receives.at;
	int owned = queue_enter(pair->send_queue);

	for (; sends->done < sends->head; sends->done++) {
		enum ibv_wc_status status = pair->error == IBV_WC_SUCCESS ? IBV_WC_RETRY_EXC_ERR : pair->error;
		add_error(pair, pair->send_queue, sends_at(&pair->sends, sends->done)->wr_id, status);
		pair->error = IBV_WC_WR_FLUSH_ERR;
	}
	sends->given = sends->head;
	queue_leave(pair->send_queue, owned);
	owned = queue_enter(pair->receive_queue);
	for (; receives->done < receives->head; receives->done++)
		add_error(pair, pair->receive_queue, receives_at(&pair->receives, receives->done)->wr_id, IBV_WC_WR_FLUSH_ERR);
	receives->given = receives->head;
	queue_leave(pair->receive_queue, owned);
}
