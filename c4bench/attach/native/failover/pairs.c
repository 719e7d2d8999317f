/* Queue pairs are made, connected and given up with their twins. */
#include "pairs.h"

#include "../say.h"
#include "fence.h"
#include "keeper.h"
#include "memory.h"
#include "next.h"
#include "pools.h"
#include "relay.h"
#include "standby.h"
#include "writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How long a NIC tries itself before it gives up, at most: 4 times 16.8 ms (4.096 us * 2^12). A program that asks for more
   has it together with the other NIC. */
enum { TIMEOUT_AT_MOST = 12, RETRIES_AT_MOST = 3 };

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	NEXT(ibv_modify_qp, ENOSYS);
	return next(qp, attributes, mask);
}

int pair_change(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	enum ibv_qp_state seen = qp->state;
	struct ibv_qp_attr permitted = *attributes;

	permitted.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE; /* for the peer's writes of no bytes */
	int failed = modify(qp, &permitted, mask);
	if (pair_of(qp))
		qp->state = seen;
	return failed;
}

int pair_set(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = {.qp_state = state};

	return pair_change(qp, &attributes, IBV_QP_STATE);
}

static int destroy(struct ibv_qp *qp)
{
	NEXT(ibv_destroy_qp, ENOSYS);
	return next(qp);
}

/* Whether a queue pair may have a twin; says why not. */
static int may_have_twin(const struct ibv_qp_init_attr *attributes, struct ibv_pd *pd)
{
	if (attributes->qp_type != IBV_QPT_RC) {
		say("a queue pair that is not reliable (RC) does not survive a failure of its NIC");
		return 0;
	}
	const struct queue *sends = queue_of(attributes->send_cq), *receives = queue_of(attributes->recv_cq);
	const struct pool *pool = pool_of(attributes->srq);

	if (!sends || !receives || sends->by_events || receives->by_events) {
		say("a queue pair whose completions come by events, or by ibv_start_poll, does not survive a failure of its NIC");
		return 0;
	}
	if (attributes->srq && (!pool || (pool->queue && pool->queue != receives))) {
		say("a queue pair whose shared receive queue has several completion queues does not survive a failure of its NIC");
		return 0;
	}
	if (!memory_twin_of(pd)) {
		say("a queue pair whose protection domain has no twin does not survive a failure of its NIC");
		return 0;
	}
	return 1;
}

static struct ibv_qp *make_twin(struct pair *pair, const struct ibv_qp_init_attr *attributes, struct ibv_pd *pd)
{
	struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *) =
		(struct ibv_qp * (*)(struct ibv_pd *, struct ibv_qp_init_attr *))next_verbs("ibv_create_qp");
	struct ibv_qp_init_attr same = *attributes;

	same.send_cq = pair->send_queue->cq[TWIN];
	same.recv_cq = pair->receive_queue->cq[TWIN];
	same.srq = pair->pool ? pair->pool->srq[TWIN] : NULL;
	return create ? create(memory_twin_of(pd), &same) : NULL;
}

static int fill(struct pair *pair, struct ibv_qp *qp, const struct ibv_qp_init_attr *attributes, struct ibv_pd *pd)
{
	pair->nic = nic_of(qp->context);
	pair->qp[OWN] = qp;
	pair->send_queue = queue_of(attributes->send_cq);
	pair->receive_queue = queue_of(attributes->recv_cq);
	pair->pool = pool_of(attributes->srq);
	if (pair->pool)
		pair->pool->queue = pair->receive_queue;
	pair->qp[TWIN] = make_twin(pair, attributes, pd);
	return pair->qp[TWIN] && sends_make(&pair->sends, &attributes->cap, attributes->sq_sig_all) &&
	       receives_make(&pair->receives, &attributes->cap);
}

static void free_pair(struct pair *pair)
{
	if (pair->qp[TWIN])
		destroy(pair->qp[TWIN]);
	sends_free(&pair->sends);
	receives_free(&pair->receives);
	free(pair->keys);
	free(pair);
}

/* Returns the new pair, NULL where the queue pair has no twin. */
static struct pair *pair_up(struct ibv_qp *qp, const struct ibv_qp_init_attr *attributes, struct ibv_pd *pd)
{
	struct pair *pair;

	if (!may_have_twin(attributes, pd))
		return NULL;
	pair = calloc(1, sizeof *pair);
	if (pair && fill(pair, qp, attributes, pd) && keeper_start() && keeper_add(pair))
		return pair;
	say("a queue pair does not survive a failure of its NIC: no memory for its twin");
	if (pair)
		free_pair(pair);
	return NULL;
}

static void leave_alone(struct ibv_qp *qp, const struct ibv_qp_init_attr *attributes)
{
	struct pool *pool = pool_of(attributes->srq);

	if (pool)
		pool_add_other(pool, qp);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
	NEXT(ibv_create_qp, NULL);
	struct ibv_qp *qp = next(pd, attributes);

	if (qp && nic_of(qp->context) && !in_child && !pair_up(qp, attributes, pd))
		leave_alone(qp, attributes);
	return qp;
}

struct ibv_qp *pair_create_extended(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes)
{
	const uint32_t plain = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct nic *nic = nic_of(context);
	struct ibv_qp *qp = nic->create_qp_ex(context, attributes);

	if (!qp || in_child)
		return qp;
	if (attributes->comp_mask & ~plain || !(attributes->comp_mask & IBV_QP_INIT_ATTR_PD)) {
		say("a queue pair does not survive a failure of its NIC: it has more than other NICs may have");
		leave_alone(qp, (struct ibv_qp_init_attr *)attributes);
		return qp;
	}
	struct pair *pair = pair_up(qp, (struct ibv_qp_init_attr *)attributes, attributes->pd);
	if (pair)
		writer_make(pair);
	else
		leave_alone(qp, (struct ibv_qp_init_attr *)attributes);
	return qp;
}

static int to_init(struct pair *pair, struct ibv_qp_attr *attributes, int mask)
{
	int failed = modify(pair->qp[OWN], attributes, mask);

	if (!failed && pair_change(pair->qp[TWIN], attributes, mask)) {
		say("the twin of a queue pair is not made ready: it does not survive a failure of its NIC");
		pair->state = PLAIN;
	}
	if (!failed) {
		pair->init = *attributes;
		pair->init_as = mask;
	}
	return failed;
}

static int local_address(const struct pair *pair, const struct ibv_ah_attr *ah, char address[ADDRESS_BYTES])
{
	int (*query)(struct ibv_context *, uint8_t, int, union ibv_gid *) =
		(int (*)(struct ibv_context *, uint8_t, int, union ibv_gid *))bare_verbs("ibv_query_gid");
	union ibv_gid gid;

	if (!query || query(pair->nic->context[OWN], ah->port_num, ah->grh.sgid_index, &gid))
		return 0;
	address_of(&gid, address);
	return 1;
}

static int to_receive(struct pair *pair, struct ibv_qp_attr *attributes, int mask)
{
	const int wanted = IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU;

	if (pair->pool && pair->pool->side == TWIN) {
		say("no new connections with a shared receive queue that has moved to another NIC");
		return ENETDOWN;
	}
	int failed = modify(pair->qp[OWN], attributes, mask);

	writer_replace(pair);
	if (failed || pair->state != YOUNG)
		return failed;
	if ((mask & wanted) != wanted || !attributes->ah_attr.is_global || !local_address(pair, &attributes->ah_attr, pair->address)) {
		say("a queue pair does not survive a failure of its NIC: its peer has no address");
		pair->state = PLAIN;
		return 0;
	}
	keeper_lock();
	pair->to_receive = *attributes;
	pair->receives_as = mask;
	pair->bytes_a_packet = 128u << attributes->path_mtu;
	address_of(&attributes->ah_attr.grh.dgid, pair->peer.address);
	pair->peer.number = attributes->dest_qp_num;
	pair->connected[OWN] = 1;
	fence_greet(pair);
	keeper_unlock();
	return 0;
}

static int to_send(struct pair *pair, struct ibv_qp_attr *attributes, int mask)
{
	struct ibv_qp_attr own = *attributes;

	int moves = pair->state != PLAIN;
	if (moves && mask & IBV_QP_TIMEOUT && (!own.timeout || own.timeout > TIMEOUT_AT_MOST))
		own.timeout = TIMEOUT_AT_MOST;
	if (moves && mask & IBV_QP_RETRY_CNT && own.retry_cnt > RETRIES_AT_MOST)
		own.retry_cnt = RETRIES_AT_MOST;
	keeper_lock();
	/* One that only received until now may have moved meanwhile. */
	int failed = pair->connected[OWN] ? modify(pair->qp[OWN], &own, mask) : 0;
	if (!failed) {
		pair->qp[OWN]->state = IBV_QPS_RTS;
		pair->to_send = own;
		pair->sends_as = mask;
		if (pair->connected[OWN]) {
			pair->packets[OWN] = own.sq_psn;
			pair->sending[OWN] = 1;
		}
		standby_enable(pair, TWIN);
	}
	keeper_unlock();
	keeper_wake();
	return failed;
}

/* The program ends what it has outstanding: from now on all is its own. */
static int to_error(struct pair *pair, struct ibv_qp_attr *attributes, int mask)
{
	keeper_lock();
	int side = pair->send_side;
	fence_stay(pair);
	keeper_unlock();
	int failed = modify(pair->qp[side], attributes, mask);
	if (!failed)
		pair->qp[OWN]->state = IBV_QPS_ERR;
	return failed;
}

/* A new beginning, at the program's own NIC. */
static int to_reset(struct pair *pair, struct ibv_qp_attr *attributes, int mask)
{
	keeper_lock();
	fence_leave(pair);
	int posting = bias_enter(&pair->posting), receiving = bias_enter(&pair->receiving);
	int sends = queue_enter(pair->send_queue);
	int receives = pair->receive_queue == pair->send_queue ? 0 : queue_enter(pair->receive_queue);
	int failed = modify(pair->qp[OWN], attributes, mask);
	pair_set(pair->qp[TWIN], IBV_QPS_RESET);
	pair->send_queue->away -= pair->send_side == TWIN;
	pair->receive_queue->away -= pair->receive_side == TWIN;
	pair->sends.at = pair->receives.at = (struct numbers){0, 0, 0};
	pair->receives.flushed = pair->receives.used = 0;
	pair->send_side = pair->receive_side = OWN;
	pair->send_epoch = ++pair->receive_epoch; /* the latter is ahead in the middle of a move */
	pair->holding = pair->receives_wait = 0;
	pair->connected[OWN] = pair->connected[TWIN] = pair->sending[OWN] = pair->sending[TWIN] = 0;
	pair->mixed_until = 0;
	pair->wanted = pair->hopeless = 0;
	pair->error = IBV_WC_SUCCESS;
	pair->state = YOUNG;
	if (pair->receive_queue != pair->send_queue)
		queue_leave(pair->receive_queue, receives);
	queue_leave(pair->send_queue, sends);
	bias_leave(&pair->receiving, receiving);
	bias_leave(&pair->posting, posting);
	keeper_unlock();
	return failed;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	struct pair *pair = in_child ? NULL : pair_of(qp);

	if (!pair)
		return modify(qp, attributes, mask);
	if (!(mask & IBV_QP_STATE))
		return modify(pair->qp[pair->send_side], attributes, mask);
	switch (attributes->qp_state) {
	case IBV_QPS_INIT:
		return to_init(pair, attributes, mask);
	case IBV_QPS_RTR:
		return to_receive(pair, attributes, mask);
	case IBV_QPS_RTS:
		return mask & IBV_QP_SQ_PSN ? to_send(pair, attributes, mask)
					    : modify(pair->qp[pair->send_side], attributes, mask);
	case IBV_QPS_ERR:
		return to_error(pair, attributes, mask);
	case IBV_QPS_RESET:
		return to_reset(pair, attributes, mask);
	default:
		return modify(pair->qp[pair->send_side], attributes, mask);
	}
}

/* The program's queue pair is in the state that its program believes. */
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *init)
{
	NEXT(ibv_query_qp, ENOSYS);
	struct pair *pair = in_child ? NULL : pair_of(qp);
	int failed = next(qp, attributes, mask, init);
	struct ibv_qp_attr other;
	struct ibv_qp_init_attr unused;

	if (failed || !pair)
		return failed;
	if (pair->state == MOVING)
		attributes->qp_state = attributes->cur_qp_state = IBV_QPS_RTS;
	else if (pair->send_side == TWIN && !next(pair->qp[TWIN], &other, IBV_QP_STATE, &unused))
		attributes->qp_state = attributes->cur_qp_state = other.qp_state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = in_child ? NULL : pair_of(qp);

	if (pair) {
		keeper_lock();
		fence_leave(pair);
		keeper_remove(pair);
		keeper_unlock();
		writer_free(pair);
	}
	pool_remove_other(qp);
	int failed = destroy(qp);
	if (pair)
		free_pair(pair);
	return failed;
}
