#include "pools.h"

#include "../say.h"
#include "../table.h"
#include "memory.h"
#include "next.h"
#include "request_id.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct table pools, others;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct pool *pool_of(struct ibv_srq *srq)
{
	return srq ? table_get(&pools, (uintptr_t)srq) : NULL;
}

static uint64_t number_key(const struct nic *nic, uint32_t number)
{
	return 1ull << 63 | (uint64_t)nic->number << 32 | number;
}

void pool_add_other(struct pool *pool, const struct ibv_qp *qp)
{
	pthread_mutex_lock(&lock);
	pool->others += table_set(&others, number_key(pool->nic, qp->qp_num), pool);
	pthread_mutex_unlock(&lock);
}

void pool_remove_other(const struct ibv_qp *qp)
{
	const struct nic *nic = nic_of(qp->context);

	pthread_mutex_lock(&lock);
	struct pool *pool = nic ? table_take(&others, number_key(nic, qp->qp_num)) : NULL;
	if (pool)
		pool->others--;
	pthread_mutex_unlock(&lock);
}

struct pool *pool_of_other(const struct nic *nic, uint32_t number)
{
	return table_get(&others, number_key(nic, number));
}

static void free_pool(struct pool *pool)
{
	free(pool->requests);
	free(pool->parts);
	free(pool->unused);
	free(pool->used);
	free(pool);
}

static struct pool *make(struct nic *nic, struct ibv_srq *own, struct ibv_srq *twin, const struct ibv_srq_attr *size)
{
	struct pool *pool = twin ? calloc(1, sizeof *pool) : NULL;

	if (!pool)
		return NULL;
	*pool = (struct pool){.nic = nic, .srq = {own, twin}, .most = size->max_wr, .unused_count = size->max_wr};
	pool->most_parts = size->max_sge ? size->max_sge : 1;
	pool->requests = calloc(pool->most, sizeof *pool->requests);
	pool->parts = calloc(pool->most, pool->most_parts * sizeof *pool->parts);
	pool->unused = calloc(pool->most, sizeof *pool->unused);
	pool->used = calloc(pool->most, 1);
	if (!pool->requests || !pool->parts || !pool->unused || !pool->used) {
		free_pool(pool);
		return NULL;
	}
	for (uint32_t i = 0; i < pool->most; i++)
		pool->unused[i] = pool->most - 1 - i;
	return pool;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes)
{
	NEXT(ibv_create_srq, NULL);
	struct ibv_srq_init_attr same = *attributes;
	struct ibv_srq *srq = next(pd, attributes);
	struct ibv_pd *twin_pd = memory_twin_of(pd);

	if (!srq || !twin_pd || in_child)
		return srq;
	struct ibv_srq *twin = next(twin_pd, &same);
	struct pool *pool = make(nic_of(pd->context), srq, twin, &attributes->attr);
	if (pool) {
		pthread_mutex_lock(&lock);
		table_set(&pools, (uintptr_t)srq, pool);
		pthread_mutex_unlock(&lock);
	} else {
		say("no memory for the twin of a shared receive queue: its queue pairs do not survive a failure");
	}
	return srq;
}

/* More room, for what is posted from now on. Returns 0 where there is no memory. */
static int extend(struct pool *pool, uint32_t most)
{
	struct received_request *requests = calloc(most, sizeof *requests);
	struct ibv_sge *parts = calloc(most, pool->most_parts * sizeof *parts);
	uint32_t *unused = calloc(most, sizeof *unused);
	unsigned char *used = calloc(most, 1);

	if (!requests || !parts || !unused || !used) {
		free(requests), free(parts), free(unused), free(used);
		return 0;
	}
	memcpy(requests, pool->requests, pool->most * sizeof *requests);
	memcpy(parts, pool->parts, (size_t)pool->most * pool->most_parts * sizeof *parts);
	memcpy(unused, pool->unused, pool->unused_count * sizeof *unused);
	memcpy(used, pool->used, pool->most);
	for (uint32_t place = 0; place < pool->most; place++)
		requests[place].wr.sg_list = parts + (size_t)place * pool->most_parts;
	for (uint32_t place = pool->most; place < most; place++)
		unused[pool->unused_count++] = place;
	free(pool->requests), free(pool->parts), free(pool->unused), free(pool->used);
	pool->requests = requests;
	pool->parts = parts;
	pool->unused = unused;
	pool->used = used;
	pool->most = most;
	return 1;
}

/* The twin gets as much room. An event of the program's own NIC at a limit would not come from the other one. */
int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attributes, int mask)
{
	NEXT(ibv_modify_srq, ENOSYS);
	struct pool *pool = in_child ? NULL : pool_of(srq);
	struct ibv_srq_attr same = *attributes;
	int failed = next(srq, attributes, mask);

	if (failed || !pool)
		return failed;
	int owned = bias_enter(&pool->lock);
	if (mask & IBV_SRQ_LIMIT || next(pool->srq[TWIN], &same, mask) ||
	    (attributes->max_wr > pool->most && !extend(pool, attributes->max_wr))) {
		say("the twin of a shared receive queue is not as large, or has no event at a limit: its queue pairs do not survive a failure");
		pool->stays = 1;
	}
	bias_leave(&pool->lock, owned);
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	NEXT(ibv_destroy_srq, ENOSYS);
	int failed = next(srq);

	if (failed)
		return failed;
	pthread_mutex_lock(&lock);
	struct pool *pool = table_take(&pools, (uintptr_t)srq);
	pthread_mutex_unlock(&lock);
	if (pool) {
		next(pool->srq[TWIN]);
		free_pool(pool);
	}
	return 0;
}

/* Give the request of a place to the present side. */
static int give(struct pool *pool, uint32_t place)
{
	const struct received_request *request = &pool->requests[place];
	struct ibv_recv_wr wr = request->wr, *bad;
	struct ibv_sge parts[PARTS_AT_MOST];

	wr.wr_id = id_of(1, pool->epoch, place);
	if (wr.num_sge > PARTS_AT_MOST)
		return EINVAL;
	for (int i = 0; i < wr.num_sge; i++) {
		parts[i] = request->wr.sg_list[i];
		if (pool->side == TWIN && parts[i].length && !memory_local_key(pool->nic, parts[i].lkey, &parts[i].lkey))
			return EINVAL;
	}
	wr.sg_list = parts;
	return pool->nic->of[pool->side].post_srq_recv(pool->srq[pool->side], &wr, &bad);
}

static int post(struct pool *pool, const struct ibv_recv_wr *wr)
{
	if (!pool->unused_count || wr->num_sge > (int)pool->most_parts)
		return ENOMEM;
	uint32_t place = pool->unused[pool->unused_count - 1];
	struct received_request *request = &pool->requests[place];
	request->wr = *wr;
	request->wr.next = NULL;
	request->wr.sg_list = pool->parts + (size_t)place * pool->most_parts;
	for (int i = 0; i < wr->num_sge; i++)
		request->wr.sg_list[i] = wr->sg_list[i];
	request->wr_id = wr->wr_id;
	pool->unused_count--;
	pool->used[place] = 1;
	int failed = give(pool, place);
	if (failed) {
		pool->used[place] = 0;
		pool->unused_count++;
	}
	return failed;
}

int pool_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
	struct pool *pool = pool_of(srq);
	int failed = 0;

	if (!pool)
		return nic_of(srq->context)->of[OWN].post_srq_recv(srq, first, bad);
	int owned = bias_enter(&pool->lock);
	for (; first && !failed; first = first->next) {
		failed = post(pool, first);
		if (failed)
			*bad = first;
	}
	bias_leave(&pool->lock, owned);
	return failed;
}

int pool_is_present(const struct pool *pool, uint32_t epoch)
{
	return is_epoch(epoch, pool->epoch);
}

int pool_take(struct pool *pool, uint32_t epoch, uint64_t place, uint64_t *wr_id)
{
	if (!pool_is_present(pool, epoch) || place >= pool->most)
		return 0;
	int owned = bias_enter(&pool->lock);
	*wr_id = pool->requests[place].wr_id;
	pool->used[place] = 0;
	pool->unused[pool->unused_count++] = (uint32_t)place;
	bias_leave(&pool->lock, owned);
	return 1;
}

int pool_move(struct pool *pool)
{
	int owned = bias_enter(&pool->lock), failed = 0;

	pool->epoch++;
	pool->side = side_beside(pool->side);
	for (uint32_t place = 0; place < pool->most && !failed; place++)
		if (pool->used[place])
			failed = give(pool, place);
	bias_leave(&pool->lock, owned);
	return failed;
}
